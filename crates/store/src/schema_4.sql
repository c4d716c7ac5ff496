-- How long a sandbox is there without being asked for. Times are in ms; NULL is for ever.
ALTER TABLE sandboxes ADD COLUMN timeout_ms INTEGER;
-- When that is over; NULL while the sandbox is paused, since its time begins anew then.
ALTER TABLE sandboxes ADD COLUMN expires_at_ms INTEGER;
ALTER TABLE sandboxes ADD COLUMN idle_timeout_ms INTEGER;
-- `kill` or `pause`: what becomes of it when either is over.
ALTER TABLE sandboxes ADD COLUMN on_timeout TEXT NOT NULL DEFAULT 'kill';
-- Whether whoever needs it running wakes it.
ALTER TABLE sandboxes ADD COLUMN auto_resume INTEGER NOT NULL DEFAULT 0;
