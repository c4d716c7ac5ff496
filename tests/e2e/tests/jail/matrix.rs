//! Every attempt, with all layers and with some off.

use crate::stage::Stage;
use pando_e2e::jail::{ATTEMPTS, Attempt, Host, OWN_VMM_MEMORY, Outcome, Report, Role};
use pando_sys::jail::{Layer, Layers, landlock};

/// Versions of landlock that kernels in use have had; the present one is tried anyway.
const VERSIONS: std::ops::Range<u32> = 0..6;

pub(crate) fn each_layer_stops_what_it_is_there_for(stage: &Stage, role: Role) {
    let host = Host::of_this_kernel();
    let mut wrong = Vec::new();
    let mut seen_through = Vec::new();
    for on in combinations(role, stage.is_root()) {
        let report = stage.run(role, on);
        for attempt in ATTEMPTS {
            let expected = attempt.gets_through(role, stage.is_root(), on, &host);
            wrong.extend(judge(attempt, &report, expected).map(|what| format!("{on:?}: {what}")));
            if report.get(attempt.name) == Some(&Outcome::Through) {
                seen_through.push(attempt.name);
            }
        }
        if role == Role::Shim && report.get(OWN_VMM_MEMORY) != Some(&Outcome::Through) {
            wrong.push(format!("{on:?}: {:?}", report.get(OWN_VMM_MEMORY)));
        }
    }
    assert!(wrong.is_empty(), "{role:?}:\n{}", wrong.join("\n"));
    // An attempt that never gets through shows nothing when it is refused.
    for attempt in ATTEMPTS {
        let none = attempt.gets_through(role, stage.is_root(), Layers::NONE, &host);
        assert_eq!(
            seen_through.contains(&attempt.name),
            none,
            "{role:?}: {}",
            attempt.name
        );
    }
}

/// What is wrong with how an attempt went, if anything is.
fn judge(attempt: &Attempt, report: &Report, expected: bool) -> Option<String> {
    let name = attempt.name;
    match (report.get(name), expected) {
        (Some(Outcome::Through), true) | (Some(Outcome::Refused(_)), false) => None,
        (None, false) => None,
        (other, true) => Some(format!("{name}: {other:?}, and should have got through")),
        (other, false) => Some(format!("{name}: {other:?}, and should have been refused")),
    }
}

/// All layers; those of older kernels; for each attempt all that stop it off, and all but
/// one of them.
fn combinations(role: Role, root: bool) -> Vec<Layers> {
    let mut all = vec![Layers::ALL];
    let mut add = |on: Layers| {
        let on = on.of_landlock(landlock::abi());
        if !all.contains(&on) {
            all.push(on);
        }
    };
    VERSIONS.for_each(|version| add(Layers::ALL.of_landlock(version)));
    let off = |layers: &mut dyn Iterator<Item = &Layer>| {
        layers.fold(Layers::ALL, |on, layer| on.without(*layer))
    };
    for layers in ATTEMPTS
        .iter()
        .filter_map(|attempt| attempt.layers(role, root))
    {
        add(off(&mut layers.iter()));
        for kept in layers {
            add(off(&mut layers.iter().filter(|layer| *layer != kept)));
        }
    }
    add(Layers::NONE);
    all
}
