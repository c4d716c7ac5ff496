//! The command line as a person uses it: streams, terminals, signals, copies.

use pando_testkit::{World, pando};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

#[test]
fn run_passes_streams_and_the_exit_code_on() {
    let world = World::start();
    let ran = world.run_with_input(
        ["run", "--", "sh", "-c", "cat; echo err >&2; exit 3"],
        b"in\n",
    );
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (3, "in\n", "err\n")
    );
    let killed = world.run(["run", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.code, 128 + 15, "{killed:?}");
    assert_eq!(world.ok(["ls", "-q"]), "", "the sandboxes are gone");
}

#[test]
fn run_takes_a_script_by_its_ending_or_its_first_line() {
    let world = World::start();
    let files = [
        ("answer.py", "import sys\nprint(6 * 7, *sys.argv[1:])\n"),
        ("answer.sh", "echo $((6 * 7)) \"$@\"\n"),
        (
            "answer",
            "#!/usr/bin/env python3\nimport sys\nprint(6 * 7, *sys.argv[1:])\n",
        ),
    ];
    for (name, text) in files {
        let path = world.scratch(name);
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        assert_eq!(world.ok(["run", &path, "a", "--b"]), "42 a --b", "{name}");
    }
}

#[test]
fn output_comes_as_it_is_written() {
    let world = World::start();
    let id = world.create();
    let mut child = world
        .command(["exec", &id, "sh", "-c", "echo first; read line; echo $line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    // Only now: had it been held back, this would never end.
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"second\n").unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((line.as_str(), rest.as_str()), ("first\n", "second\n"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn control_c_in_run_destroys_the_sandbox() {
    let world = World::start();
    let mut child = world
        .command(["run", "--", "sh", "-c", "echo up; sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    let id = world.ok(["ls", "-q"]);
    let vmm = world.vmm_pid(&id);
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(world.ok(["ls", "-q"]), "");
    assert!(!std::path::Path::new(&format!("/proc/{vmm}/exe")).exists());
}

#[test]
fn a_terminal_is_a_terminal_and_has_its_size() {
    let world = World::start();
    let id = world.create();
    let line = format!(
        "stty rows 33 cols 101; {} exec -it {id} sh -c 'tty; stty size; echo $TERM'",
        pando().display()
    );
    let mut command = world.command([""; 0]);
    let environment: Vec<_> = command
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
        .collect();
    // `script` is the terminal.
    command = Command::new("script");
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // Its stdin stays open: the end of it would be typed as one more character.
    let child = command
        .env("TERM", "xterm-256color")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let keyboard = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(keyboard);
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    assert_eq!(said, "/dev/pts/0\n33 101\nxterm-256color\n");
    assert!(output.status.success());
}

#[test]
fn files_and_directories_are_copied_both_ways() {
    let world = World::start();
    let id = world.create();
    let from = world.scratch("from");
    std::fs::create_dir_all(from.join("deep/er")).unwrap();
    // Not a multiple of any buffer's size, and no byte like the next.
    let bytes: Vec<u8> = (0..(5 << 20) + 12_345u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    std::fs::write(from.join("big"), &bytes).unwrap();
    std::fs::write(from.join("deep/er/empty"), "").unwrap();
    let from = from.display().to_string();
    world.ok([
        "cp",
        &format!("{from}/big"),
        &format!("{id}:new/parent/big"),
    ]);
    assert_eq!(
        world.sh(&id, "stat -c '%U %s' new new/parent/big"),
        format!("user 4096\nuser {}", bytes.len())
    );
    let back = world.scratch("back");
    world.ok([
        "cp",
        &format!("{id}:new/parent/big"),
        &back.display().to_string(),
    ]);
    assert!(std::fs::read(&back).unwrap() == bytes, "the copy differs");

    world.ok(["cp", &from, &format!("{id}:/home/user/tree")]);
    assert_eq!(
        world.sh(
            &id,
            "cd tree && find . -type f | sort && cmp big ../new/parent/big"
        ),
        "./big\n./deep/er/empty"
    );
    let tree = world.scratch("tree");
    world.ok(["cp", &format!("{id}:tree"), &tree.display().to_string()]);
    assert!(std::fs::read(tree.join("big")).unwrap() == bytes);
    assert!(tree.join("deep/er/empty").exists());
}

#[test]
fn an_exec_goes_on_under_the_next_daemon() {
    let mut world = World::start();
    let id = world.create();
    let port = world.url().rsplit(':').next().unwrap().to_owned();
    let mut child = world
        .command([
            "exec",
            &id,
            "sh",
            "-c",
            "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done; exit 9",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Once it has said something: before that it may not know which process it began, and
    // nobody could attach it again.
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    stdout.read_line(&mut said).unwrap();
    world.kill_daemon();
    world.start_daemon_at(&format!("127.0.0.1:{port}"));
    stdout.read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(said, "1\n2\n3\n4\n5\n6\n7\n8\n");
    assert_eq!(status.code(), Some(9));
}

#[test]
fn another_size_is_baked_at_its_first_use() {
    let world = World::start();
    let id = world.ok(["create", "--cpus", "2", "--memory", "1024"]);
    assert_eq!(world.sh(&id, "nproc"), "2");
    let kib: u64 = world
        .sh(&id, "awk '/MemTotal/ { print $2 }' /proc/meminfo")
        .parse()
        .unwrap();
    assert!((900 << 10..1024 << 10).contains(&kib), "{kib} KiB");
}

#[test]
fn the_program_needs_no_library_of_the_host() {
    let empty = tempfile::tempdir().unwrap();
    std::fs::copy(pando(), empty.path().join("pando")).unwrap();
    let mut chroot = std::process::Command::new("chroot");
    chroot.arg(empty.path()).args(["/pando", "version"]);
    let output = chroot.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("pando "), "{said}");
}
