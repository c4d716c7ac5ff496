//! `/etc/passwd` and `/etc/group`, read anew each time: guest code may change them.

use std::collections::HashMap;
use std::fs;

/// A line of `/etc/passwd`, with the groups that name the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids, the primary one included.
    pub groups: Vec<u32>,
    /// Home folder.
    pub home: String,
    /// Login shell.
    pub shell: String,
}

/// Whose processes and files they are where a request names nobody.
pub(crate) const DEFAULT_USER: &str = "user";

/// Where a passwd line names no shell.
const DEFAULT_SHELL: &str = "/bin/sh";

impl User {
    /// Looks a user up by name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        let group = fs::read_to_string("/etc/group").unwrap_or_default();
        find_in(name, &passwd, &group)
    }
}

fn find_in(name: &str, passwd: &str, group: &str) -> Option<User> {
    let fields = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.first() == Some(&name))?;
    let [_, _, uid, gid, _, home, shell, ..] = fields[..] else {
        return None;
    };
    let gid = gid.parse().ok()?;
    let mut groups = vec![gid];
    groups.extend(group.lines().filter_map(|line| group_of(name, line)));
    groups.dedup();
    let shell = if shell.is_empty() {
        DEFAULT_SHELL
    } else {
        shell
    };
    Some(User {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid,
        groups,
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

/// The id of the group on this line, if it lists the user.
fn group_of(name: &str, line: &str) -> Option<u32> {
    let mut fields = line.split(':').skip(2);
    let id = fields.next()?.parse().ok()?;
    fields
        .next()?
        .split(',')
        .any(|member| member == name)
        .then_some(id)
}

/// Names of users and groups by id.
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    /// Reads both files.
    pub(crate) fn read() -> Self {
        let ids = |path| names_by_id(&fs::read_to_string(path).unwrap_or_default());
        Self {
            users: ids("/etc/passwd"),
            groups: ids("/etc/group"),
        }
    }

    /// The user's name, or the id in digits.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users
            .get(&uid)
            .cloned()
            .unwrap_or_else(|| uid.to_string())
    }

    /// The group's name, or the id in digits.
    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups
            .get(&gid)
            .cloned()
            .unwrap_or_else(|| gid.to_string())
    }
}

fn names_by_id(file: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in file.lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(id)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        if let Ok(id) = id.parse() {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:\nbroken:x:1\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:other,user\nusers:x:100:superuser\nuser:x:1000:\n";

    #[test]
    fn a_user_has_its_groups_and_a_shell() {
        let user = find_in("user", PASSWD, GROUP).expect("user");
        assert_eq!((user.uid, user.gid), (1000, 1000));
        assert_eq!(user.groups, [1000, 27]);
        assert_eq!(
            (user.home.as_str(), user.shell.as_str()),
            ("/home/user", "/bin/sh")
        );
    }

    #[test]
    fn nobody_unknown_or_broken_is_found() {
        assert_eq!(find_in("nobody", PASSWD, GROUP), None);
        assert_eq!(find_in("broken", PASSWD, GROUP), None);
        assert_eq!(find_in("", PASSWD, GROUP), None);
    }

    #[test]
    fn ids_without_a_name_are_digits() {
        let names = Names {
            users: names_by_id(PASSWD),
            groups: names_by_id(GROUP),
        };
        assert_eq!(
            (names.user(1000), names.user(7)),
            ("user".into(), "7".into())
        );
        assert_eq!(names.group(27), "sudo");
    }
}
