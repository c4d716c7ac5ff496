-- What a sandbox may reach, and what is spawned from a snapshot unless it says otherwise:
-- {"default": "allow" | "deny", "rules": ["allow ENTRY" | "deny ENTRY", ...]}.
ALTER TABLE sandboxes ADD COLUMN egress TEXT NOT NULL DEFAULT '{"default":"allow","rules":[]}';
ALTER TABLE snapshots ADD COLUMN egress TEXT NOT NULL DEFAULT '{"default":"allow","rules":[]}';
ALTER TABLE templates ADD COLUMN egress TEXT NOT NULL DEFAULT '{"default":"allow","rules":[]}';
-- Ports of sandboxes that are other than the daemon's default.
CREATE TABLE ports (
    sandbox   TEXT NOT NULL,
    port      INTEGER NOT NULL,
    -- The port of the host that leads to it; kept through pauses and daemons.
    host_port INTEGER UNIQUE,
    -- Who may use it by HTTP: `public`, `token`, or NULL for the default.
    access    TEXT,
    PRIMARY KEY (sandbox, port)
) STRICT;
