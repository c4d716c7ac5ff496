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
