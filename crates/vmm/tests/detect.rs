//! Finding an accelerator on the host that runs the tests, whichever it has.
#![allow(missing_docs, reason = "the names of tests are their documentation")]

use std::path::Path;
use std::time::{Duration, Instant};

use pando_types::Accelerator;
use pando_vmm::detect::{AcceleratorWish, DetectError, QemuVersion, accelerator};

const BINARY: &str = "/usr/bin/qemu-system-x86_64";

#[test]
fn the_choice_is_quick_explained_and_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("accelerator");
    let binary = Path::new(BINARY);
    let version = QemuVersion::probe(binary).unwrap();
    let find = |wish| accelerator(binary, &version, wish, Some(&cache));

    let started = Instant::now();
    let found = find(AcceleratorWish::Auto).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(found.reason.len() > 10, "{}", found.reason);
    assert!(cache.exists());
    assert_eq!(find(AcceleratorWish::Auto).unwrap(), found, "remembered");

    match (found.accelerator, find(AcceleratorWish::Kvm)) {
        (Accelerator::Kvm, Ok(same)) => assert_eq!(same, found),
        (Accelerator::Tcg, Err(DetectError::KvmUnusable(why))) => assert_eq!(why, found.reason),
        (_, other) => panic!("{found:?} but {other:?}"),
    }
    assert_eq!(
        find(AcceleratorWish::Tcg).unwrap().accelerator,
        Accelerator::Tcg
    );
}
