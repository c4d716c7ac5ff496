//! Things to fetch: a git repository, an index for pip, an archive for apt.

use super::tools::run;
use super::write;
use std::path::Path;
use std::process::Command;

/// A wheel has a table of its files; hashes in it are optional.
const WHEEL: [(&str, &str); 4] = [
    (
        "hello/__init__.py",
        "def main():\n    print('hello from the index')\n",
    ),
    (
        "hello-1.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: hello\nVersion: 1\n",
    ),
    (
        "hello-1.dist-info/WHEEL",
        "Wheel-Version: 1.0\nGenerator: pando\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    ),
    (
        "hello-1.dist-info/RECORD",
        "hello/__init__.py,,\nhello-1.dist-info/METADATA,,\nhello-1.dist-info/WHEEL,,\n\
         hello-1.dist-info/RECORD,,\n",
    ),
];

const CONTROL: &str = "Package: hello-pando\nVersion: 1\nArchitecture: all\n\
                       Maintainer: Pando <nobody@test.example>\nDescription: says hello\n";

/// Puts everything below `www`, a folder for each site.
pub(super) fn publish(www: &Path) {
    repository(&www.join("git"));
    index(&www.join("pypi"));
    archive(&www.join("apt"));
}

/// `hello.git`, for `git daemon` and, by plain files, for the web.
fn repository(dir: &Path) {
    let work = dir.join("work");
    write(&work.join("greeting"), "hello from git\n");
    commit(&work);
    let bare = dir.join("hello.git");
    run(git(dir)
        .args(["clone", "--quiet", "--bare"])
        .arg(&work)
        .arg(&bare));
    run(git(&bare).arg("update-server-info"));
}

/// A simple index (PEP 503) with one wheel.
fn index(dir: &Path) {
    let work = dir.join("work");
    for (name, text) in WHEEL {
        write(&work.join(name), text);
    }
    commit(&work);
    let page = "<!DOCTYPE html><a href='/files/hello-1-py3-none-any.whl'>hello</a>\n";
    write(&dir.join("simple/hello/index.html"), page);
    std::fs::create_dir(dir.join("files")).expect("a directory");
    // A wheel is a zip file, which git can make.
    run(git(&work)
        .args(["archive", "--format=zip", "HEAD", "--output"])
        .arg(dir.join("files/hello-1-py3-none-any.whl")));
}

/// A flat archive: packages and their list in one folder.
fn archive(dir: &Path) {
    let work = dir.join("work");
    write(&work.join("DEBIAN/control"), CONTROL);
    write(&work.join("usr/share/hello-pando"), "hello from apt\n");
    let package = dir.join("hello-pando.deb");
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "--build"])
        .args([&work, &package]));
    let bytes = std::fs::metadata(&package).expect("the package").len();
    let hash = run(Command::new("sha256sum").arg(&package));
    let hash = hash.split(' ').next().unwrap_or_default();
    let list = format!("{CONTROL}Filename: ./hello-pando.deb\nSize: {bytes}\nSHA256: {hash}\n");
    write(&dir.join("Packages"), &list);
}

fn commit(work: &Path) {
    run(git(work).args(["init", "--quiet", "--initial-branch=main"]));
    run(git(work).args(["add", "--all"]));
    run(git(work)
        .args([
            "-c",
            "user.name=Pando",
            "-c",
            "user.email=nobody@test.example",
        ])
        .args(["commit", "--quiet", "--message=Hello"]));
}

fn git(dir: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(dir);
    git
}
