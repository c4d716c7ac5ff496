//! `pando create`, and making a sandbox for `run`.

use super::{limits, net};
use crate::cli::{Create, SandboxFlags, Span};
use crate::exit;
use crate::output;
use pando_client::api::{CreateSandboxRequest, Sandbox};
use pando_client::{Client, ClientError};
use std::time::Duration;

/// A sandbox that takes longer than this is waiting for something a person should know of.
const PATIENCE: Duration = Duration::from_secs(3);

/// Makes a sandbox and prints its id.
pub(super) async fn create(client: Client, flags: Create) -> anyhow::Result<u8> {
    let wanted = CreateSandboxRequest {
        name: flags.name,
        env: flags.env.into_iter().collect(),
        labels: flags.label.into_iter().collect(),
        timeout_s: flags.lifetime.timeout.and_then(Span::seconds),
        idle_timeout_s: flags.lifetime.sleep.idle_timeout.and_then(Span::seconds),
        on_timeout: flags.lifetime.sleep.on_timeout,
        auto_resume: flags.lifetime.sleep.auto_resume.unwrap_or_default(),
        ..request(&flags.sandbox)
    };
    output::line(&make(&client, &wanted).await?.id);
    Ok(exit::DONE)
}

/// What the flags ask for.
pub(super) fn request(flags: &SandboxFlags) -> CreateSandboxRequest {
    CreateSandboxRequest {
        template: flags.template.clone(),
        from: flags.from.clone(),
        disk_only: flags.disk_only,
        cpus: flags.cpus,
        memory_mib: flags.memory,
        start: flags.start.clone(),
        egress: net::egress(&flags.egress),
        limits: limits::of_flags(&flags.limit),
        ..CreateSandboxRequest::default()
    }
}

/// Makes a sandbox; says so if it waits for a bake.
pub(super) async fn make(
    client: &Client,
    wanted: &CreateSandboxRequest,
) -> Result<Sandbox, ClientError> {
    let mut making = std::pin::pin!(client.create(wanted));
    match tokio::time::timeout(PATIENCE, &mut making).await {
        Ok(made) => made,
        Err(_) => {
            tell_of_bake(client, wanted).await;
            making.await
        }
    }
}

/// Tells a person that the size is baked first, if it is.
async fn tell_of_bake(client: &Client, wanted: &CreateSandboxRequest) {
    if wanted.from.is_some() {
        return;
    }
    let template = wanted.template.as_deref().unwrap_or("base");
    let Ok(templates) = client.templates().await else {
        return;
    };
    let Some(known) = templates.iter().find(|known| known.name == template) else {
        return;
    };
    let fits = |wanted: Option<u32>, baked: u32| wanted.is_none_or(|wanted| wanted == baked);
    let baked = known
        .baked
        .iter()
        .any(|size| fits(wanted.cpus, size.cpus) && fits(wanted.memory_mib, size.memory_mib));
    if !baked {
        output::note(&format!(
            "baking `{template}` at this size: its first use boots it once, which takes a while"
        ));
    }
}
