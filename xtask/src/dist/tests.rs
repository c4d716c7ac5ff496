use super::*;
use std::collections::BTreeSet;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A folder in the target directory, which is not the tests' alone.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pando-dist-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&folder).ok();
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Packs a stand-in for the program twice, at another time and under another umask.
#[test]
fn the_packages_are_whole_and_the_same_each_time() {
    let work = Scratch::new("whole");
    let steps = Steps::start(&work.0, "log").unwrap();
    let program = work.0.join("pando");
    std::fs::write(&program, "#!/bin/sh\necho stand-in\n").unwrap();
    let (first, second) = (work.0.join("first"), work.0.join("second"));
    let packed = pack(&steps, &root(), &program, &first).unwrap();
    pack(&steps, &root(), &program, &second).unwrap();
    for path in &packed {
        let name = path.file_name().unwrap();
        assert!(
            std::fs::read(path).unwrap() == std::fs::read(second.join(name)).unwrap(),
            "{} differs from one time to the next",
            path.display()
        );
    }
    let checked = run("sha256sum", &["--check", "SHA256SUMS"], &first);
    assert_eq!(checked.matches(": OK").count(), 3, "{checked}");
    // Nothing is left lying about.
    assert_eq!(std::fs::read_dir(&first).unwrap().count(), 4);

    let name = format!("pando_{VERSION}_amd64.deb");
    let fields = run("dpkg-deb", &["--field", &name], &first);
    for line in [
        "Package: pando",
        &format!("Version: {VERSION}"),
        "Architecture: amd64",
    ] {
        assert!(fields.lines().any(|found| found == line), "{fields}");
    }
    assert!(!fields.contains('@'.to_string().repeat(2).as_str()));
    assert!(!fields.contains("@VERSION@") && !fields.contains("@INSTALLED"));
    let contents = run("dpkg-deb", &["--contents", &name], &first);
    for (mode, path) in [
        ("-rwxr-xr-x root/root", "./usr/bin/pando"),
        (
            "-rw-r--r-- root/root",
            "./usr/lib/systemd/system/pando.service",
        ),
        ("-rw-r--r-- root/root", "./usr/share/doc/pando/install.md"),
        (
            "-rw-r--r-- root/root",
            "./usr/share/doc/pando/pando.cdx.json",
        ),
        (
            "-rw-r--r-- root/root",
            "./usr/share/pando/prometheus/pando.rules.yml",
        ),
        ("drwxr-xr-x root/root", "./usr/share/pando/"),
    ] {
        let found = contents
            .lines()
            .any(|line| line.starts_with(mode) && line.ends_with(path));
        assert!(found, "{mode} {path} in\n{contents}");
    }

    let tar = format!("pando-{VERSION}-x86_64-linux.tar.gz");
    run("tar", &["--extract", "--file", &tar], &first);
    let unpacked = first.join(tar.trim_end_matches(".tar.gz"));
    assert_eq!(run("./pando", &[], &unpacked), "stand-in\n");
    assert!(unpacked.join("LICENSE").is_file());
}

#[test]
fn the_maintainer_scripts_are_sound_shell() {
    for name in ["postinst", "prerm", "postrm"] {
        let path = root().join("packaging/debian").join(name);
        run("sh", &["-n", path.to_str().unwrap()], &root());
    }
    run("sh", &["-n", "tests/kvm/run"], &root());
    run("sh", &["-n", "images/kvm-host/setup.sh"], &root());
}

/// Removing the package must not run a program that is already gone, and a purge must
/// leave alone what is not Pando's.
#[test]
fn a_purge_removes_the_directories_of_the_unit_and_no_others() {
    let text = std::fs::read_to_string(root().join("packaging/debian/postrm")).unwrap();
    let removed: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("rm -rf "))
        .flat_map(str::split_whitespace)
        .collect();
    assert_eq!(
        removed,
        ["/var/lib/pando", "/var/cache/pando", "/etc/pando"]
    );
}

#[test]
fn the_sbom_lists_what_is_in_the_program_and_nothing_else() {
    let document: serde_json::Value =
        serde_json::from_slice(&sbom::make(&root(), VERSION).unwrap()).unwrap();
    let components = document["components"].as_array().unwrap();
    let names: BTreeSet<&str> = components
        .iter()
        .map(|component| component["name"].as_str().unwrap())
        .collect();
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    // Of the network, the index, the guest's half, the library: code of each kind.
    for name in [
        "smoltcp",
        "libsqlite3-sys",
        "pando-agent",
        "pando-preload",
        "tokio",
    ] {
        assert!(names.contains(name), "{name} is missing");
    }
    // What tests, compiles, or runs in the compiler is not handed out.
    for name in [
        "insta",
        "proptest",
        "connectrpc-build",
        "serde_derive",
        "pando-e2e",
    ] {
        assert!(lock.contains(&format!("name = \"{name}\"")), "{name}");
        assert!(!names.contains(name), "{name} is not in the program");
    }
    let mut seen = BTreeSet::new();
    for component in components {
        let (name, version) = (&component["name"], &component["version"]);
        let entry = format!("name = {name}\nversion = {version}\n",);
        assert!(lock.contains(&entry), "{entry} is not in Cargo.lock");
        assert!(seen.insert(entry), "{name} is listed twice");
        let own = name.as_str().unwrap().starts_with("pando");
        assert_eq!(component["hashes"].is_null(), own, "{name}");
        assert!(component["licenses"].is_array(), "{name} has no licence");
    }
}
