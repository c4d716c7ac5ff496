CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE keys (
    hash          BLOB PRIMARY KEY,
    tenant        TEXT NOT NULL,
    label         TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE templates (
    tenant        TEXT NOT NULL,
    name          TEXT NOT NULL,
    tag           TEXT NOT NULL,
    root          TEXT NOT NULL,
    recipe        TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name, tag)
) STRICT;

CREATE TABLE sandboxes (
    id            TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    name          TEXT,
    state         TEXT NOT NULL,
    state_reason  TEXT,
    template      TEXT NOT NULL,
    root          TEXT NOT NULL,
    cpus          INTEGER NOT NULL,
    memory_mib    INTEGER NOT NULL,
    env           TEXT NOT NULL,
    labels        TEXT NOT NULL,
    isolation     TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    started_at_ms INTEGER,
    boot_id       TEXT NOT NULL
) STRICT;

-- NULLs are distinct: any number of sandboxes may go without a name.
CREATE UNIQUE INDEX sandbox_names ON sandboxes (tenant, name);

CREATE TABLE events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms    INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    kind     TEXT NOT NULL,
    subject  TEXT NOT NULL,
    detail   TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_tenant ON events (tenant, sequence);
