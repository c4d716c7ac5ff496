//! `pando template`: list, warm, bake, remove.

use super::sandboxes::age_since;
use super::{block_on, client, load, remove_each, serve};
use crate::cli::{Bake, Global, List, ManyTemplates, TemplateCommand, TemplateNet, Warm};
use crate::exit;
use crate::output;
use pando_client::api::{BakeRequest, ChangeRequest, Template, WarmRequest};
use pando_client::{Client, ClientError};

/// Looks after templates.
pub(super) fn template(global: &Global, command: TemplateCommand) -> anyhow::Result<u8> {
    let config = load(global)?;
    match command {
        TemplateCommand::Ls(flags) => block_on(ls(client(&config)?, flags)),
        TemplateCommand::Rm(flags) => block_on(rm(client(&config)?, flags)),
        TemplateCommand::Net(flags) => block_on(net(client(&config)?, flags)),
        TemplateCommand::Warm(flags) => block_on(warm(client(&config)?, flags)),
        TemplateCommand::Bake(flags) => {
            let client = client(&config)?;
            match block_on(async { Ok(client.health().await) })? {
                Ok(()) => block_on(bake(client, flags)),
                // Without a daemon the work is done here, so that a template can be there before the daemon is.
                Err(ClientError::NotReachable { .. }) => serve::bake_here(&config, &flags),
                Err(error) => Err(error.into()),
            }
        }
    }
}

async fn ls(client: Client, flags: List) -> anyhow::Result<u8> {
    let templates = client.templates().await?;
    if flags.json {
        output::json(&templates)?;
    } else if flags.quiet {
        templates
            .iter()
            .for_each(|template| output::line(&template.name));
    } else {
        let rows: Vec<_> = templates.iter().map(row).collect();
        output::table(&["NAME", "HASH", "SIZE", "AGE", "BAKED"], &rows);
    }
    Ok(exit::DONE)
}

fn row(template: &Template) -> Vec<String> {
    let baked = template
        .baked
        .iter()
        .map(|size| format!("{} CPU {} MiB", size.cpus, size.memory_mib));
    vec![
        template.name.clone(),
        template.content_hash.chars().take(12).collect(),
        output::bytes(template.disk_bytes),
        age_since(&template.created_at),
        baked.collect::<Vec<_>>().join(", "),
    ]
}

async fn warm(client: Client, flags: Warm) -> anyhow::Result<u8> {
    let wanted = WarmRequest {
        cpus: flags.cpus,
        memory_mib: flags.memory,
    };
    client.warm_template(&flags.name, &wanted).await?;
    output::line(&flags.name);
    Ok(exit::DONE)
}

async fn net(client: Client, flags: TemplateNet) -> anyhow::Result<u8> {
    let templates = client.templates().await?;
    let egress = match super::net::egress(&flags.egress) {
        Some(egress) => {
            let change = ChangeRequest {
                egress: Some(egress),
            };
            client.change_template(&flags.name, &change).await?.egress
        }
        None => {
            let named = |template: &&Template| template.name == flags.name;
            let found = templates.iter().find(named);
            let missing = || anyhow::anyhow!("template `{}` not found", flags.name);
            found.ok_or_else(missing)?.egress.clone()
        }
    };
    super::net::rules(&egress)
        .iter()
        .for_each(|rule| output::line(rule));
    Ok(exit::DONE)
}

async fn rm(client: Client, flags: ManyTemplates) -> anyhow::Result<u8> {
    remove_each(&flags.names, async |name| {
        client.remove_template(name).await
    })
    .await
}

async fn bake(client: Client, flags: Bake) -> anyhow::Result<u8> {
    output::note("the daemon bakes; `pando logs` shows its steps");
    let wanted = BakeRequest {
        host_ca: flags.host_ca,
        cpus: flags.cpus,
        memory_mib: flags.memory,
    };
    output::line(&client.bake_template(&flags.name, &wanted).await?.name);
    Ok(exit::DONE)
}
