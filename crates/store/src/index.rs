//! The index: rows of sandboxes, templates, keys and events, in SQLite.
//!
//! WAL, `synchronous=FULL`: a change that was reported survives a power cut. The
//! schema has a version; an older file is copied beside itself and then migrated, a
//! newer one is refused.

use crate::lifetime::{self, LifetimeRow};
use pando_types::{SandboxState, SnapshotKind};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The schema this program writes. Each step of [`MIGRATIONS`] raises it by one.
pub const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

const MIGRATIONS: [&str; 5] = [
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
];

/// What SQLite lets its log grow to before it writes it back: 1000 pages.
const LOG_RESERVED_BYTES: u64 = 4 << 20;

/// How long a statement waits for another process' transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Events kept; older ones are dropped as new ones come.
const EVENTS_KEPT: u64 = 100_000;

/// Why the index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The file was written by a newer Pando.
    #[error(
        "`{path}` has schema {found}, this Pando knows {SCHEMA_VERSION}: install the newer Pando again, or restore `{path}.schema-{SCHEMA_VERSION}`"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The name is taken by a living sandbox.
    #[error("the name is taken")]
    NameTaken,
    /// The file cannot be made or written.
    #[error("cannot write `{path}`")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// SQLite failed.
    #[error("the index failed")]
    Sqlite(#[from] rusqlite::Error),
    /// A row holds something no version wrote.
    #[error("the index holds a malformed {0}")]
    Malformed(&'static str),
}

impl IndexError {
    /// Whether the file system is full.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Sqlite(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            _ => false,
        }
    }
}

/// The index of one state directory.
#[derive(Debug)]
pub struct Index {
    connection: Mutex<Connection>,
}

/// A sandbox's row. Maps are JSON, since nothing selects by them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRow {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub tenant: String,
    /// Unique within the tenant.
    pub name: Option<String>,
    /// What it does.
    pub state: SandboxState,
    /// Why, for a person.
    pub state_reason: Option<String>,
    /// `name:tag` of its template.
    pub template: String,
    /// BLAKE3 of its root image.
    pub root: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// JSON object.
    pub env: String,
    /// JSON object.
    pub labels: String,
    /// JSON object.
    pub isolation: String,
    /// When it was made.
    pub created_at: SystemTime,
    /// When it last began to run.
    pub started_at: Option<SystemTime>,
    /// The host's boot id when it last began to run.
    pub boot_id: String,
    /// The last snapshot in its past.
    pub parent: Option<String>,
    /// Name of its directory, where that is not its id.
    pub home: Option<String>,
    /// The snapshot that holds it while it is paused.
    pub paused_in: Option<String>,
    /// JSON object: what it may reach.
    pub egress: String,
    /// JSON object: what it may use of its host.
    pub limits: String,
    /// How long it is there.
    pub lifetime: LifetimeRow,
}

/// A snapshot's row. What it is made of is in its manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotRow {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub tenant: String,
    /// Unique within the tenant.
    pub name: Option<String>,
    /// With its memory, or the disk alone.
    pub kind: SnapshotKind,
    /// The sandbox it was taken of.
    pub sandbox: String,
    /// The snapshot before it.
    pub parent: Option<String>,
    /// `name:tag` of the template.
    pub template: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// JSON object.
    pub labels: String,
    /// For people.
    pub note: String,
    /// When it was taken.
    pub created_at: SystemTime,
    /// How long the sandbox stood still, in ms.
    pub pause_ms: f64,
    /// How long it took until it was durable, in ms.
    pub durable_ms: f64,
    /// Bytes on disk beyond its parent's.
    pub bytes: u64,
    /// Pages beyond its parent's.
    pub dirty_pages: u64,
    /// The guest came to rest in time.
    pub clean: bool,
    /// JSON object: what its sandbox might reach.
    pub egress: String,
    /// JSON object: what its sandbox might use of the host.
    pub limits: String,
}

/// A template's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateRow {
    /// Whose it is.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Its tag.
    pub tag: String,
    /// Content hash of its root image.
    pub root: String,
    /// JSON: how it was made, for making it again.
    pub recipe: String,
    /// JSON object: what its sandboxes may reach, unless they say otherwise.
    pub egress: String,
    /// When it was made.
    pub created_at: SystemTime,
}

/// An event to be written.
#[derive(Clone, Debug)]
pub struct NewEvent<'a> {
    /// Whose it is.
    pub tenant: &'a str,
    /// A word such as `sandbox.created`.
    pub kind: &'a str,
    /// The id it is about.
    pub subject: &'a str,
    /// For a person.
    pub detail: &'a str,
}

/// A written event.
#[derive(Clone, Debug)]
pub struct EventRow {
    /// Rises by one for each.
    pub sequence: u64,
    /// When.
    pub at: SystemTime,
    /// A word such as `sandbox.created`.
    pub kind: String,
    /// The id it is about.
    pub subject: String,
    /// For a person.
    pub detail: String,
}

/// What changes with a sandbox's state.
#[derive(Clone, Debug)]
pub struct StateChange<'a> {
    /// The sandbox.
    pub id: &'a str,
    /// Its new state.
    pub state: SandboxState,
    /// Why, for a person.
    pub reason: Option<&'a str>,
    /// JSON of its isolation, when it begins to run.
    pub isolation: Option<&'a str>,
    /// Where it lives and what it came from, when that changes with the state.
    pub place: Option<Place<'a>>,
    /// When its time is over, from now on.
    pub expires_at: Option<SystemTime>,
}

/// Where a sandbox lives and what it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place<'a> {
    /// Name of its directory, where that is not its id.
    pub home: Option<&'a str>,
    /// The last snapshot in its past.
    pub parent: Option<&'a str>,
    /// The snapshot that holds it while it is paused.
    pub paused_in: Option<&'a str>,
}

impl Index {
    /// Opens the file, makes it if it is missing, migrates it if it is older.
    ///
    /// # Errors
    /// It is newer, not a database, or not writable.
    pub fn open(path: &Path) -> Result<Self, IndexError> {
        make_private(path)?;
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        migrate(&mut connection, path)?;
        reserve(path);
        Ok(Self {
            connection: Mutex::new(connection),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic while the lock was held left no half transaction: SQLite rolled it back.
        self.connection
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adds a key by the hash of its text.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn add_key(&self, hash: &[u8; 32], tenant: &str, label: &str) -> Result<(), IndexError> {
        self.lock().execute(
            "INSERT OR REPLACE INTO keys (hash, tenant, label, created_at_ms) VALUES (?1, ?2, ?3, ?4)",
            params![hash, tenant, label, millis(SystemTime::now())],
        )?;
        Ok(())
    }

    /// The hash and tenant of every key; the caller compares in constant time.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn keys(&self) -> Result<Vec<([u8; 32], String)>, IndexError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT hash, tenant FROM keys")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Adds or replaces a template; what its sandboxes may reach stays as it was.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn put_template(&self, row: &TemplateRow) -> Result<(), IndexError> {
        self.lock().execute(
            "INSERT INTO templates (tenant, name, tag, root, recipe, created_at_ms, egress) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (tenant, name, tag) DO UPDATE SET root = ?4, recipe = ?5, created_at_ms = ?6",
            params![row.tenant, row.name, row.tag, row.root, row.recipe, millis(row.created_at), row.egress],
        )?;
        Ok(())
    }

    /// Removes a template's row and writes the event; false if there is none.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn remove_template(
        &self,
        (tenant, name, tag): (&str, &str, &str),
        event: &NewEvent<'_>,
    ) -> Result<bool, IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let removed = transaction.execute(
            "DELETE FROM templates WHERE tenant = ?1 AND name = ?2 AND tag = ?3",
            [tenant, name, tag],
        )?;
        if removed > 0 {
            insert_event(&transaction, event)?;
        }
        transaction.commit()?;
        Ok(removed > 0)
    }

    /// All templates of a tenant, by name and tag.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn templates(&self, tenant: &str) -> Result<Vec<TemplateRow>, IndexError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT tenant, name, tag, root, recipe, created_at_ms, egress FROM templates WHERE tenant = ?1 ORDER BY name, tag",
        )?;
        let rows = statement.query_map([tenant], template_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// All templates of all tenants.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn all_templates(&self) -> Result<Vec<TemplateRow>, IndexError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT tenant, name, tag, root, recipe, created_at_ms, egress FROM templates",
        )?;
        let rows = statement.query_map([], template_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Adds a sandbox and its first events in one transaction.
    ///
    /// # Errors
    /// The name is taken, or SQLite failed.
    pub fn add_sandbox(&self, row: &SandboxRow, events: &[NewEvent<'_>]) -> Result<(), IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let inserted = transaction.execute(
            "INSERT INTO sandboxes (id, tenant, name, state, state_reason, template, root, cpus, memory_mib, env, labels, isolation, created_at_ms, started_at_ms, boot_id, parent, home, paused_in, egress, limits)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)",
            params![
                row.id, row.tenant, row.name, row.state.as_str(), row.state_reason, row.template, row.root, row.cpus,
                row.memory_mib, row.env, row.labels, row.isolation, millis(row.created_at), row.started_at.map(millis), row.boot_id,
                row.parent, row.home, row.paused_in, row.egress, row.limits
            ],
        );
        match inserted {
            Err(error) if is_unique_violation(&error) => return Err(IndexError::NameTaken),
            other => other?,
        };
        if row.lifetime != LifetimeRow::default() {
            lifetime::write(&transaction, &row.id, &row.lifetime)?;
        }
        for event in events {
            insert_event(&transaction, event)?;
        }
        Ok(transaction.commit()?)
    }

    /// Writes a state and its event in one transaction. `started_at` follows a change to running.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn set_state(
        &self,
        change: &StateChange<'_>,
        boot_id: &str,
        event: &NewEvent<'_>,
    ) -> Result<(), IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        transaction.execute(
            "UPDATE sandboxes SET state = ?2, state_reason = ?3, isolation = coalesce(?4, isolation), expires_at_ms = ?5 WHERE id = ?1",
            params![change.id, change.state.as_str(), change.reason, change.isolation, change.expires_at.map(millis)],
        )?;
        if change.state == SandboxState::Running {
            transaction.execute(
                "UPDATE sandboxes SET started_at_ms = ?2, boot_id = ?3 WHERE id = ?1",
                params![change.id, millis(SystemTime::now()), boot_id],
            )?;
        }
        if let Some(place) = change.place {
            transaction.execute(
                "UPDATE sandboxes SET home = ?2, parent = ?3, paused_in = ?4 WHERE id = ?1",
                params![change.id, place.home, place.parent, place.paused_in],
            )?;
        }
        insert_event(&transaction, event)?;
        Ok(transaction.commit()?)
    }

    /// Adds a snapshot, makes it its sandbox's parent and writes the event, in one transaction.
    ///
    /// # Errors
    /// The name is taken, or SQLite failed.
    pub fn add_snapshot(&self, row: &SnapshotRow, event: &NewEvent<'_>) -> Result<(), IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let inserted = transaction.execute(
            "INSERT INTO snapshots (id, tenant, name, kind, sandbox, parent, template, cpus, memory_mib, labels, note, created_at_ms, pause_ms, durable_ms, bytes, dirty_pages, clean, egress, limits)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
            params![
                row.id, row.tenant, row.name, row.kind.as_str(), row.sandbox, row.parent, row.template, row.cpus,
                row.memory_mib, row.labels, row.note, millis(row.created_at), row.pause_ms, row.durable_ms,
                count(row.bytes), count(row.dirty_pages), row.clean, row.egress, row.limits
            ],
        );
        match inserted {
            Err(error) if is_unique_violation(&error) => return Err(IndexError::NameTaken),
            other => other?,
        };
        transaction.execute(
            "UPDATE sandboxes SET parent = ?2 WHERE id = ?1",
            [&row.sandbox, &row.id],
        )?;
        insert_event(&transaction, event)?;
        Ok(transaction.commit()?)
    }

    /// Removes a snapshot's row and writes the event in one transaction.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn remove_snapshot(&self, id: &str, event: &NewEvent<'_>) -> Result<(), IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        transaction.execute("DELETE FROM snapshots WHERE id = ?1", [id])?;
        insert_event(&transaction, event)?;
        Ok(transaction.commit()?)
    }

    /// All snapshots of all tenants, oldest first.
    ///
    /// # Errors
    /// SQLite failed, or a row is malformed.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRow>, IndexError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT id, tenant, name, kind, sandbox, parent, template, cpus, memory_mib, labels, note, created_at_ms, pause_ms, durable_ms, bytes, dirty_pages, clean, egress, limits
             FROM snapshots ORDER BY created_at_ms, id",
        )?;
        let rows = statement.query_map([], snapshot_row)?;
        rows.map(|row| row?.ok_or(IndexError::Malformed("snapshot kind")))
            .collect()
    }

    /// Writes what a sandbox may reach, and its event, in one transaction.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn set_sandbox_egress(
        &self,
        id: &str,
        egress: &str,
        event: &NewEvent<'_>,
    ) -> Result<(), IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        transaction.execute(
            "UPDATE sandboxes SET egress = ?2 WHERE id = ?1",
            [id, egress],
        )?;
        insert_event(&transaction, event)?;
        Ok(transaction.commit()?)
    }

    /// Writes what a template's sandboxes may reach, and its event; false if there is none.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn set_template_egress(
        &self,
        (tenant, name, tag): (&str, &str, &str),
        egress: &str,
        event: &NewEvent<'_>,
    ) -> Result<bool, IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let changed = transaction.execute(
            "UPDATE templates SET egress = ?4 WHERE tenant = ?1 AND name = ?2 AND tag = ?3",
            [tenant, name, tag, egress],
        )?;
        if changed > 0 {
            insert_event(&transaction, event)?;
        }
        transaction.commit()?;
        Ok(changed > 0)
    }

    /// Removes a sandbox's row and writes the event in one transaction.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn remove_sandbox(&self, id: &str, event: &NewEvent<'_>) -> Result<(), IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        transaction.execute("DELETE FROM sandboxes WHERE id = ?1", [id])?;
        transaction.execute("DELETE FROM ports WHERE sandbox = ?1", [id])?;
        insert_event(&transaction, event)?;
        Ok(transaction.commit()?)
    }

    /// All sandboxes of all tenants, oldest first.
    ///
    /// # Errors
    /// SQLite failed, or a row is malformed.
    pub fn sandboxes(&self) -> Result<Vec<SandboxRow>, IndexError> {
        let connection = self.lock();
        let statement = format!(
            "SELECT id, tenant, name, state, state_reason, template, root, cpus, memory_mib, env, labels, isolation, created_at_ms, started_at_ms, boot_id, parent, home, paused_in, egress, limits, {}
             FROM sandboxes ORDER BY created_at_ms, id",
            lifetime::COLUMNS
        );
        let mut statement = connection.prepare_cached(&statement)?;
        let rows = statement.query_map([], sandbox_row)?;
        rows.map(|row| row?.ok_or(IndexError::Malformed("sandbox state or lifetime")))
            .collect()
    }

    /// Writes an event alone.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn add_event(&self, event: &NewEvent<'_>) -> Result<(), IndexError> {
        insert_event(&self.lock(), event)
    }

    /// A value kept under a name; see [`Self::set_value`].
    ///
    /// # Errors
    /// SQLite failed.
    pub fn value(&self, name: &str) -> Result<Option<String>, IndexError> {
        let connection = self.lock();
        let mut statement =
            connection.prepare_cached("SELECT value FROM settings WHERE name = ?1")?;
        Ok(statement.query_row([name], |row| row.get(0)).optional()?)
    }

    /// Keeps a small value under a name.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn set_value(&self, name: &str, value: &str) -> Result<(), IndexError> {
        self.lock().execute(
            "INSERT OR REPLACE INTO settings (name, value) VALUES (?1, ?2)",
            [name, value],
        )?;
        Ok(())
    }
}

fn sandbox_row(row: &Row<'_>) -> rusqlite::Result<Option<SandboxRow>> {
    let state = row.get::<_, String>(3)?.parse();
    let (Ok(state), Some(lifetime)) = (state, lifetime::read(row, 20)?) else {
        return Ok(None);
    };
    Ok(Some(SandboxRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        name: row.get(2)?,
        state,
        state_reason: row.get(4)?,
        template: row.get(5)?,
        root: row.get(6)?,
        cpus: row.get(7)?,
        memory_mib: row.get(8)?,
        env: row.get(9)?,
        labels: row.get(10)?,
        isolation: row.get(11)?,
        created_at: time(row.get(12)?),
        started_at: row.get::<_, Option<i64>>(13)?.map(time),
        boot_id: row.get(14)?,
        parent: row.get(15)?,
        home: row.get(16)?,
        paused_in: row.get(17)?,
        egress: row.get(18)?,
        limits: row.get(19)?,
        lifetime,
    }))
}

fn snapshot_row(row: &Row<'_>) -> rusqlite::Result<Option<SnapshotRow>> {
    let Ok(kind) = row.get::<_, String>(3)?.parse() else {
        return Ok(None);
    };
    Ok(Some(SnapshotRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        name: row.get(2)?,
        kind,
        sandbox: row.get(4)?,
        parent: row.get(5)?,
        template: row.get(6)?,
        cpus: row.get(7)?,
        memory_mib: row.get(8)?,
        labels: row.get(9)?,
        note: row.get(10)?,
        created_at: time(row.get(11)?),
        pause_ms: row.get(12)?,
        durable_ms: row.get(13)?,
        bytes: row.get::<_, i64>(14)?.unsigned_abs(),
        dirty_pages: row.get::<_, i64>(15)?.unsigned_abs(),
        clean: row.get(16)?,
        egress: row.get(17)?,
        limits: row.get(18)?,
    }))
}

/// A count as SQLite keeps it.
fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn template_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<TemplateRow> {
    Ok(TemplateRow {
        tenant: row.get(0)?,
        name: row.get(1)?,
        tag: row.get(2)?,
        root: row.get(3)?,
        recipe: row.get(4)?,
        created_at: time(row.get(5)?),
        egress: row.get(6)?,
    })
}

pub(crate) fn insert_event(
    connection: &Connection,
    event: &NewEvent<'_>,
) -> Result<(), IndexError> {
    connection
        .prepare_cached(
            "INSERT INTO events (at_ms, tenant, kind, subject, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            millis(SystemTime::now()),
            event.tenant,
            event.kind,
            event.subject,
            event.detail
        ])?;
    let newest = connection.last_insert_rowid();
    let keep = i64::try_from(EVENTS_KEPT).unwrap_or(i64::MAX);
    // Now and then, not each time: a delete writes pages too.
    if newest > keep && newest % 1000 == 0 {
        connection.execute("DELETE FROM events WHERE sequence <= ?1", [newest - keep])?;
    }
    Ok(())
}

/// Sets space aside for the log: on a full disk a sandbox that came to nothing, or is removed
/// to make room, must not keep its row. SQLite writes a log of up to 4 MiB over and over, and
/// only a last orderly close removes it.
fn reserve(path: &Path) {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    // Without it all is as good until the disk is full.
    if let Ok(log) = std::fs::File::options().write(true).open(log) {
        drop(pando_sys::file::reserve(&log, LOG_RESERVED_BYTES));
    }
}

/// Makes the file, if it is missing, with a mode that keeps it from other users: it
/// holds sandboxes' environments. SQLite gives its files beside it the same mode.
fn make_private(path: &Path) -> Result<(), IndexError> {
    let mut options = std::fs::OpenOptions::new();
    let made = options.create(true).append(true).mode(0o600).open(path);
    made.map(drop).map_err(|source| IndexError::File {
        path: path.to_path_buf(),
        source,
    })
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), IndexError> {
    let found: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > SCHEMA_VERSION {
        return Err(IndexError::Newer {
            path: path.to_path_buf(),
            found,
        });
    }
    if found > 0 && found < SCHEMA_VERSION {
        let mut backup = path.as_os_str().to_owned();
        backup.push(format!(".schema-{found}"));
        // A backup from an interrupted try is of the same version: it is made anew.
        drop(std::fs::remove_file(&backup));
        connection.execute("VACUUM INTO ?1", [backup.to_string_lossy()])?;
    }
    for version in found..SCHEMA_VERSION {
        let transaction = connection.transaction()?;
        transaction.execute_batch(MIGRATIONS[version as usize])?;
        transaction.pragma_update(None, "user_version", version + 1)?;
        transaction.commit()?;
    }
    Ok(())
}

fn is_unique_violation(error: &rusqlite::Error) -> bool {
    error
        .sqlite_error()
        .is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE)
}

pub(crate) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn time(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{EventQuery, EventRow};

    pub(crate) const EVENT: NewEvent<'static> = NewEvent {
        tenant: "default",
        kind: "sandbox.created",
        subject: "s",
        detail: "",
    };

    const EGRESS: &str = r#"{"default":"deny","rules":[]}"#;

    pub(crate) fn row(id: &str, name: Option<&str>) -> SandboxRow {
        SandboxRow {
            id: id.into(),
            tenant: "default".into(),
            name: name.map(Into::into),
            state: SandboxState::Creating,
            state_reason: None,
            template: "base".into(),
            root: "key".into(),
            cpus: 1,
            memory_mib: 512,
            env: "{}".into(),
            labels: "{}".into(),
            isolation: "{}".into(),
            created_at: UNIX_EPOCH + Duration::from_millis(5),
            started_at: None,
            boot_id: String::new(),
            parent: None,
            home: None,
            paused_in: None,
            egress: EGRESS.into(),
            limits: "{}".into(),
            lifetime: LifetimeRow::default(),
        }
    }

    fn snapshot(id: &str, name: Option<&str>) -> SnapshotRow {
        SnapshotRow {
            id: id.into(),
            tenant: "default".into(),
            name: name.map(Into::into),
            kind: SnapshotKind::Full,
            sandbox: "a".into(),
            parent: None,
            template: "base".into(),
            cpus: 1,
            memory_mib: 512,
            labels: "{}".into(),
            note: "n".into(),
            created_at: UNIX_EPOCH + Duration::from_millis(5),
            pause_ms: 6.5,
            durable_ms: 80.25,
            bytes: 1 << 40,
            dirty_pages: 3,
            clean: true,
            egress: EGRESS.into(),
            limits: "{}".into(),
        }
    }

    fn events(index: &Index, tenant: &str, after: u64) -> Vec<EventRow> {
        let query = EventQuery {
            tenant: tenant.to_owned(),
            after,
            limit: 10,
            ..EventQuery::default()
        };
        index.journal(&query).unwrap().events
    }

    #[test]
    fn a_snapshot_becomes_its_sandboxs_parent_or_nothing_is_written() {
        let (_dir, index) = fresh();
        index.add_sandbox(&row("a", None), &[EVENT]).unwrap();
        index
            .add_snapshot(&snapshot("n1", Some("x")), &EVENT)
            .unwrap();
        let refused = index.add_snapshot(&snapshot("n2", Some("x")), &EVENT);
        assert!(matches!(refused, Err(IndexError::NameTaken)));
        assert_eq!(index.sandboxes().unwrap()[0].parent.as_deref(), Some("n1"));
        assert_eq!(index.snapshots().unwrap(), [snapshot("n1", Some("x"))]);
        index.remove_snapshot("n1", &EVENT).unwrap();
        index
            .add_snapshot(&snapshot("n2", Some("x")), &EVENT)
            .unwrap();
        assert_eq!(events(&index, "default", 0).len(), 4);
    }

    #[test]
    fn an_older_schema_is_kept_beside_the_migrated_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pando.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(MIGRATIONS[0]).unwrap();
        old.pragma_update(None, "user_version", 1).unwrap();
        old.execute_batch(
            "INSERT INTO sandboxes VALUES ('a', 'default', 'x', 'stopped', NULL, 'base', 'r', 1, 512, '{}', '{}', '{}', 5, NULL, '')",
        )
        .unwrap();
        drop(old);
        let index = Index::open(&path).unwrap();
        let rows = index.sandboxes().unwrap();
        assert_eq!((rows[0].id.as_str(), &rows[0].home), ("a", &None));
        let backup = Connection::open(dir.path().join("pando.db.schema-1")).unwrap();
        let version: u32 = backup
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap();
        let kept: u32 = backup
            .query_row("SELECT count(*) FROM sandboxes", [], |row| row.get(0))
            .unwrap();
        assert_eq!((version, kept), (1, 1));
    }

    pub(crate) fn fresh() -> (tempfile::TempDir, Index) {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::open(&dir.path().join("pando.db")).unwrap();
        (dir, index)
    }

    #[test]
    fn the_index_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let (dir, index) = fresh();
        index.add_sandbox(&row("a", None), &[EVENT]).unwrap();
        for name in ["pando.db", "pando.db-wal", "pando.db-shm"] {
            let mode = std::fs::metadata(dir.path().join(name))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn rows_outlive_the_process() {
        let (dir, index) = fresh();
        index.add_sandbox(&row("a", Some("x")), &[EVENT]).unwrap();
        let change = StateChange {
            id: "a",
            state: SandboxState::Running,
            reason: None,
            isolation: Some("{\"a\":1}"),
            place: Some(Place {
                home: Some("b"),
                ..Place::default()
            }),
            expires_at: None,
        };
        index.set_state(&change, "boot", &EVENT).unwrap();
        drop(index);
        let index = Index::open(&dir.path().join("pando.db")).unwrap();
        let rows = index.sandboxes().unwrap();
        assert_eq!(
            (rows.len(), rows[0].state, rows[0].boot_id.as_str()),
            (1, SandboxState::Running, "boot")
        );
        assert!(rows[0].started_at.is_some());
        assert_eq!(rows[0].home.as_deref(), Some("b"));
        assert_eq!(events(&index, "default", 1).len(), 1);
        assert!(events(&index, "other", 0).is_empty());
    }

    #[test]
    fn a_name_is_free_again_after_removal() {
        let (_dir, index) = fresh();
        index.add_sandbox(&row("a", Some("x")), &[EVENT]).unwrap();
        assert!(matches!(
            index.add_sandbox(&row("b", Some("x")), &[EVENT]),
            Err(IndexError::NameTaken)
        ));
        assert_eq!(
            events(&index, "default", 0).len(),
            1,
            "the refused row left no event"
        );
        index.add_sandbox(&row("c", None), &[EVENT]).unwrap();
        index.add_sandbox(&row("d", None), &[EVENT]).unwrap();
        index.remove_sandbox("a", &EVENT).unwrap();
        index.add_sandbox(&row("b", Some("x")), &[EVENT]).unwrap();
    }

    #[test]
    fn a_newer_schema_is_refused_in_one_sentence() {
        let (dir, index) = fresh();
        index
            .lock()
            .pragma_update(None, "user_version", SCHEMA_VERSION + 1)
            .unwrap();
        drop(index);
        let path = dir.path().join("pando.db");
        let error = Index::open(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "has schema {}, this Pando knows {SCHEMA_VERSION}",
                SCHEMA_VERSION + 1
            )),
            "{error}"
        );
    }

    #[test]
    fn keys_and_values_read_back() {
        let (_dir, index) = fresh();
        index.add_key(&[7; 32], "default", "admin").unwrap();
        assert_eq!(index.keys().unwrap(), [([7; 32], "default".to_owned())]);
        index.set_value("a", "1").unwrap();
        index.set_value("a", "2").unwrap();
        assert_eq!(index.value("a").unwrap().as_deref(), Some("2"));
        assert_eq!(index.value("b").unwrap(), None);
    }
}
