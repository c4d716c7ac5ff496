-- What a sandbox may use of its host, and what is spawned from a snapshot unless it says
-- otherwise: {"cpu_percent": 50, ...}; what is not there is not limited.
ALTER TABLE sandboxes ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
ALTER TABLE snapshots ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
