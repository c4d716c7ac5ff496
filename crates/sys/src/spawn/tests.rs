use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::jail::landlock::{Access, Policy};

/// Runs a shell script to its end; returns how it ended and what it wrote.
fn run_script(script: &str, prepare: impl FnOnce(Spawn) -> Spawn) -> (ChildExit, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    let spawn = Spawn::new(Path::new("/bin/sh"))
        .args(["-c", script])
        .env("PATH", "/usr/bin:/bin")
        .descriptor(writer.try_clone().unwrap().into(), 1)
        .descriptor(writer.into(), 2);
    let child = prepare(spawn).spawn().unwrap();
    let mut output = String::new();
    let mut reader = std::fs::File::from(OwnedFd::from(reader));
    reader.read_to_string(&mut output).unwrap();
    (child.wait().unwrap(), output)
}

fn system_paths(policy: Policy) -> Policy {
    ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"]
        .into_iter()
        .fold(policy, |policy, path| {
            policy.allow_if_present(Path::new(path), Access::Execute)
        })
        .allow(Path::new("/dev/null"), Access::Write)
}

#[test]
fn the_exit_tells_a_code_from_a_signal() {
    assert_eq!(run_script("exit 7", |spawn| spawn).0, ChildExit::Code(7));
    let (exit, _) = run_script("kill -TERM $$", |spawn| spawn);
    assert_eq!(exit, ChildExit::Signal(libc::SIGTERM));
}

#[test]
fn the_child_has_the_descriptors_it_was_given_and_no_others() {
    let file = std::fs::File::open("/dev/zero").unwrap();
    let leaked = rustix::io::dup(&file).unwrap();
    assert!(leaked.as_raw_fd() > 2);
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let script = "for n in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$n ] && readlink /proc/$$/fd/$n; done; \
                  ls -l /proc/$$/fd | grep -c /dev/zero";
    let (_, output) = run_script(script, |spawn| spawn.descriptor(file.into(), 5));
    let lines: Vec<&str> = output.lines().collect();
    let [stdin, stdout, stderr, given, count] = lines[..] else {
        panic!("{output}")
    };
    assert_eq!((stdin, given, count), ("/dev/null", "/dev/zero", "1"));
    assert!(stdout.starts_with("pipe:") && stderr.starts_with("pipe:"));
}

#[test]
fn descriptors_may_be_given_under_each_others_numbers() {
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let (zero_number, null_number) = (zero.as_raw_fd(), null.as_raw_fd());
    let script = format!("readlink /proc/$$/fd/{zero_number} /proc/$$/fd/{null_number}");
    let (_, output) = run_script(&script, |spawn| {
        spawn
            .descriptor(zero.into(), null_number)
            .descriptor(null.into(), zero_number)
    });
    assert_eq!(output, "/dev/null\n/dev/zero\n");
}

#[test]
fn a_number_twice_or_out_of_range_is_refused() {
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let spawn = || Spawn::new(Path::new("/bin/true"));
    let twice = spawn().descriptor(null(), 3).descriptor(null(), 3).spawn();
    assert!(matches!(twice, Err(SpawnError::Target(3))));
    assert!(matches!(
        spawn().descriptor(null(), 256).spawn(),
        Err(SpawnError::Target(256))
    ));
    assert!(matches!(
        spawn().descriptor(null(), -1).spawn(),
        Err(SpawnError::Target(-1))
    ));
}

#[test]
fn the_environment_is_what_was_given() {
    let (reader, writer) = std::io::pipe().unwrap();
    let child = Spawn::new(Path::new("/usr/bin/env"))
        .env("ONLY", "this")
        .descriptor(writer.into(), 1)
        .spawn()
        .unwrap();
    let mut output = String::new();
    std::fs::File::from(OwnedFd::from(reader))
        .read_to_string(&mut output)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(output, "ONLY=this\n");
}

#[test]
fn a_failure_names_its_step() {
    let error = Spawn::new(Path::new("/no/such/program"))
        .spawn()
        .unwrap_err();
    let SpawnError::Child { step, source } = error else {
        panic!("{error}")
    };
    assert_eq!(step, "execute the program");
    assert_eq!(source.kind(), io::ErrorKind::NotFound);

    let missing = Path::new("/no/such/folder");
    let error = Spawn::new(Path::new("/bin/true"))
        .current_dir(missing)
        .spawn()
        .unwrap_err();
    assert!(matches!(
        error,
        SpawnError::Child {
            step: "enter its working directory",
            ..
        }
    ));
    let error = Spawn::new(Path::new("/bin/true"))
        .arg("a\0b")
        .spawn()
        .unwrap_err();
    assert!(matches!(error, SpawnError::Nul(_)));
}

#[test]
fn limits_and_privileges_are_set() {
    let script = "ulimit -n; ulimit -c; grep NoNewPrivs /proc/$$/status";
    let (_, output) = run_script(script, |spawn| spawn.limit(Limit::OpenFiles(77)));
    let words: Vec<&str> = output.split_whitespace().collect();
    assert_eq!(words, ["77", "0", "NoNewPrivs:", "1"]);
}

#[test]
fn a_write_to_nobody_ends_the_child() {
    // Rust ignores SIGPIPE; a child that inherited that would get an error instead.
    let (exit, output) = run_script("(sleep 0.1; yes; echo $? >&2) | true", |spawn| spawn);
    assert!(exit.success());
    assert!(
        !output.contains("Broken pipe") && !output.contains("write error"),
        "{output}"
    );
}

#[test]
fn another_identity_needs_privilege_and_leaves_no_groups() {
    let nobody = Identity {
        uid: 65534,
        gid: 65534,
    };
    if rustix::process::geteuid().is_root() {
        let (_, output) = run_script("id -u; id -G", |spawn| spawn.identity(nobody));
        assert_eq!(output, "65534\n65534\n");
        return;
    }
    let error = Spawn::new(Path::new("/bin/true"))
        .identity(nobody)
        .spawn()
        .unwrap_err();
    assert!(matches!(
        error,
        SpawnError::Child {
            step: "become its user",
            ..
        }
    ));
}

#[test]
fn the_child_dies_with_the_thread_that_started_it() {
    let child = std::thread::spawn(|| {
        Spawn::new(Path::new("/bin/sleep"))
            .arg("60")
            .new_session()
            .death_signal(libc::SIGKILL)
            .spawn()
            .unwrap()
    })
    .join()
    .unwrap();
    assert_eq!(child.wait().unwrap(), ChildExit::Signal(libc::SIGKILL));
}

#[test]
fn a_running_child_can_be_asked_and_killed() {
    let child = Spawn::new(Path::new("/bin/sleep"))
        .arg("60")
        .spawn()
        .unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill(libc::SIGKILL).unwrap();
    assert_eq!(child.wait().unwrap(), ChildExit::Signal(libc::SIGKILL));
}

#[test]
fn landlock_lets_through_what_is_named_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["read", "write", "secret"] {
        std::fs::write(path(name), name).unwrap();
    }
    let policy = system_paths(Policy::new())
        .allow(&path("read"), Access::Read)
        .allow(&path("write"), Access::Write);
    let ruleset = Ruleset::new(&policy, Layers::ALL).unwrap();
    assert!(
        !ruleset.layers().is_empty(),
        "these tests need a kernel with landlock"
    );
    let script =
        "cat read; echo x >read; echo new >write; cat secret; echo x >created; rm write; true";
    let (_, output) = run_script(script, |spawn| {
        spawn.current_dir(folder.path()).landlock(ruleset)
    });
    assert!(output.starts_with("read"), "{output}");
    assert_eq!(
        std::fs::read_to_string(path("read")).unwrap(),
        "read",
        "{output}"
    );
    assert_eq!(
        std::fs::read_to_string(path("write")).unwrap(),
        "new\n",
        "{output}"
    );
    assert!(!output.contains("\nsecret"), "{output}");
    assert!(!path("created").exists());
}

#[test]
fn the_filter_denies_names_modes_sockets_and_signals() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let script = "\
        chmod 777 file; mv file other; ln file hard; ln -s file soft; mkdir folder; rm -f file; \
        kill -0 $PPID && echo signalled; \
        bash -c 'echo >/dev/tcp/127.0.0.1/1' 2>&1 | grep -o 'Operation not permitted' | head -1; \
        cat file; true";
    let (exit, output) = run_script(script, |spawn| {
        spawn
            .current_dir(folder.path())
            .seccomp(Program::vmm().unwrap())
    });
    assert!(exit.success(), "{output}");
    assert!(
        output.ends_with("Operation not permitted\nkept"),
        "{output}"
    );
    assert!(!output.contains("signalled"), "{output}");
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "{output}"
    );
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o640
    );
}
