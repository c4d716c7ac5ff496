//! The index's rows of sandboxes' ports.

use crate::index::{Index, IndexError, NewEvent, insert_event};
use rusqlite::params;

/// A port of a sandbox that is other than the daemon's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRow {
    /// The sandbox.
    pub sandbox: String,
    /// The port inside.
    pub port: u16,
    /// The port of the host that leads to it.
    pub host_port: Option<u16>,
    /// `public` or `token`; `None` is the daemon's default.
    pub access: Option<String>,
}

impl Index {
    /// Adds or replaces a port, unless its sandbox is gone, and writes the event; false if it
    /// is gone.
    ///
    /// # Errors
    /// The host's port is another's, or SQLite failed.
    pub fn put_port(&self, row: &PortRow, event: &NewEvent<'_>) -> Result<bool, IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let written = transaction.execute(
            "INSERT INTO ports (sandbox, port, host_port, access)
             SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM sandboxes WHERE id = ?1)
             ON CONFLICT (sandbox, port) DO UPDATE SET host_port = ?3, access = ?4",
            params![row.sandbox, row.port, row.host_port, row.access],
        )?;
        if written > 0 {
            insert_event(&transaction, event)?;
        }
        transaction.commit()?;
        Ok(written > 0)
    }

    /// Removes a port's row and writes the event; false if there is none.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn remove_port(
        &self,
        sandbox: &str,
        port: u16,
        event: &NewEvent<'_>,
    ) -> Result<bool, IndexError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let removed = transaction.execute(
            "DELETE FROM ports WHERE sandbox = ?1 AND port = ?2",
            params![sandbox, port],
        )?;
        if removed > 0 {
            insert_event(&transaction, event)?;
        }
        transaction.commit()?;
        Ok(removed > 0)
    }

    /// All ports of all sandboxes.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn ports(&self) -> Result<Vec<PortRow>, IndexError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT sandbox, port, host_port, access FROM ports ORDER BY sandbox, port",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(PortRow {
                sandbox: row.get(0)?,
                port: row.get(1)?,
                host_port: row.get(2)?,
                access: row.get(3)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::tests::{EVENT, fresh, row};

    fn port(sandbox: &str, port: u16, host_port: Option<u16>) -> PortRow {
        PortRow {
            sandbox: sandbox.into(),
            port,
            host_port,
            access: None,
        }
    }

    #[test]
    fn a_port_of_the_host_leads_to_one_sandbox_and_goes_with_it() {
        let (_dir, index) = fresh();
        index.add_sandbox(&row("a", None), &[EVENT]).unwrap();
        index.add_sandbox(&row("b", None), &[EVENT]).unwrap();
        assert!(
            index
                .put_port(&port("a", 80, Some(20_000)), &EVENT)
                .unwrap()
        );
        assert!(
            index
                .put_port(&port("b", 80, Some(20_000)), &EVENT)
                .is_err()
        );
        assert!(!index.put_port(&port("c", 80, None), &EVENT).unwrap());
        let with_access = PortRow {
            access: Some("token".into()),
            ..port("a", 80, Some(20_000))
        };
        assert!(index.put_port(&with_access, &EVENT).unwrap());
        assert_eq!(index.ports().unwrap(), [with_access]);
        index.remove_sandbox("a", &EVENT).unwrap();
        assert_eq!(index.ports().unwrap(), []);
        assert!(
            index
                .put_port(&port("b", 80, Some(20_000)), &EVENT)
                .unwrap()
        );
        assert!(index.remove_port("b", 80, &EVENT).unwrap());
        assert!(!index.remove_port("b", 80, &EVENT).unwrap());
    }
}
