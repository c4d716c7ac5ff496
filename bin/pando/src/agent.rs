//! The guest agent's program, carried inside this one.

use crate::exit::{self, Failure};

/// Put there by the build script; empty if the agent was not built first.
static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pando-agent"));

/// The agent: a static program for the guest.
pub(crate) fn agent() -> anyhow::Result<&'static [u8]> {
    if AGENT.is_empty() {
        let failure = Failure::new(
            exit::FAILED,
            "this `pando` was built without the guest agent",
        );
        return Err(failure.hint("`make quickstart` builds both").into());
    }
    Ok(AGENT)
}
