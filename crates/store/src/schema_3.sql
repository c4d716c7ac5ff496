-- What a sandbox may reach, and what is spawned from a snapshot unless it says otherwise:
-- {"default": "allow" | "deny", "rules": ["allow ENTRY" | "deny ENTRY", ...]}.
ALTER TABLE sandboxes ADD COLUMN egress TEXT NOT NULL DEFAULT '{"default":"allow","rules":[]}';
ALTER TABLE snapshots ADD COLUMN egress TEXT NOT NULL DEFAULT '{"default":"allow","rules":[]}';
ALTER TABLE templates ADD COLUMN egress TEXT NOT NULL DEFAULT '{"default":"allow","rules":[]}';
