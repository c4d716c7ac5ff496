//! `pando timeout`: how long a sandbox is there.

use super::sandboxes::age_since;
use crate::cli::{SleepFlags, Span, Timeout};
use crate::exit;
use crate::output;
use pando_client::Client;
use pando_client::api::{ChangeSandboxRequest, Sandbox};
use std::time::SystemTime;

/// Shows it, or changes it.
pub(super) async fn timeout(client: Client, flags: Timeout) -> anyhow::Result<u8> {
    let SleepFlags {
        idle_timeout,
        on_timeout,
        auto_resume,
    } = flags.sleep;
    let change = ChangeSandboxRequest {
        timeout_s: flags.time.map(Span::seconds),
        idle_timeout_s: idle_timeout.map(Span::seconds),
        on_timeout,
        auto_resume,
        ..ChangeSandboxRequest::default()
    };
    let sandbox = match change == ChangeSandboxRequest::default() {
        true => client.get(&flags.id).await?,
        false => client.change(&flags.id, &change).await?,
    };
    if flags.json {
        output::json(&sandbox)?;
    } else {
        output::data(&describe(&sandbox));
    }
    Ok(exit::DONE)
}

fn describe(sandbox: &Sandbox) -> String {
    let mut timeout = span(sandbox.timeout_s);
    if let Some(at) = &sandbox.expires_at {
        timeout.push_str(&format!(", over in {} ({at})", until(at)));
    }
    let idle = span(sandbox.idle_timeout_s);
    let used = age_since(&sandbox.last_used_at);
    let wakes = match sandbox.auto_resume {
        true => "on",
        false => "off",
    };
    format!(
        "timeout       {timeout}\nidle timeout  {idle}, last used {used} ago\nthen          {}\nauto-resume   {wakes}\n",
        sandbox.on_timeout
    )
}

fn span(seconds: Option<f64>) -> String {
    match seconds {
        None => "none".to_owned(),
        Some(seconds) if seconds < 120.0 => format!("{seconds}s"),
        // Whole units: what was given mostly is one.
        Some(seconds) => output::age(seconds as u64),
    }
}

/// How long until an RFC 3339 time.
fn until(timestamp: &str) -> String {
    let Ok(then) = timestamp.parse::<jiff::Timestamp>() else {
        return "?".to_owned();
    };
    let left = SystemTime::from(then).duration_since(SystemTime::now());
    output::age(left.unwrap_or_default().as_secs())
}

/// What there is to say in a listing: when its time is over, and its time without use.
pub(super) fn brief(sandbox: &Sandbox) -> String {
    let expires = sandbox.expires_at.as_deref().map(until);
    let idle = sandbox
        .idle_timeout_s
        .filter(|_| sandbox.state == "running")
        .map(|seconds| format!("{} idle", span(Some(seconds))));
    let both: Vec<_> = expires.into_iter().chain(idle).collect();
    both.join(", ")
}
