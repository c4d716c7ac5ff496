//! Resources: the sandboxes, one of them, and the tree, as JSON.

use crate::answer::Failure;
use pando_client::{Client, ClientError};
use rmcp::ErrorData;
use rmcp::model::{
    ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use serde::Serialize;
use serde_json::{Value, json};

const JSON: &str = "application/json";

/// Those with an address of their own.
pub(crate) fn list() -> Vec<Resource> {
    [
        ("pando://sandboxes", "sandboxes", "Your sandboxes"),
        (
            "pando://tree",
            "tree",
            "Your snapshots and sandboxes, each with its parent",
        ),
        (
            "arrakis://vms",
            "vms",
            "Your sandboxes, in the words of Arrakis",
        ),
    ]
    .into_iter()
    .map(|(uri, name, description)| {
        let mut resource = Resource::new(uri, name);
        resource.description = Some(description.to_owned());
        resource.mime_type = Some(JSON.to_owned());
        resource
    })
    .collect()
}

/// Those whose address has a part to fill in.
pub(crate) fn templates() -> Vec<ResourceTemplate> {
    [
        (
            "pando://sandboxes/{id}",
            "sandbox",
            "One sandbox, by id or name",
        ),
        (
            "arrakis://vm/{vm_name}",
            "vm",
            "One sandbox, in the words of Arrakis",
        ),
    ]
    .into_iter()
    .map(|(uri, name, description)| {
        let mut template = ResourceTemplate::new(uri, name);
        template.description = Some(description.to_owned());
        template.mime_type = Some(JSON.to_owned());
        template
    })
    .collect()
}

/// Reads one.
///
/// # Errors
/// If there is none at this address, or the daemon refuses.
pub(crate) async fn read(
    client: Result<Client, ClientError>,
    uri: String,
) -> Result<ReadResourceResponse, ErrorData> {
    let value = value(client.map_err(failed)?, &uri).await?;
    let text = serde_json::to_string_pretty(&value)
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let mut contents = ResourceContents::text(text, uri);
    if let ResourceContents::TextResourceContents { mime_type, .. } = &mut contents {
        *mime_type = Some(JSON.to_owned());
    }
    Ok(ReadResourceResult::new(vec![contents]).into())
}

async fn value(client: Client, uri: &str) -> Result<Value, ErrorData> {
    let sandbox = |before| uri.strip_prefix(before).filter(|name| !name.is_empty());
    if let Some(name) = sandbox("pando://sandboxes/") {
        return json(client.get(name).await);
    }
    if let Some(name) = sandbox("arrakis://vm/") {
        return json(client.get(name).await.map(|found| vm(&found)));
    }
    match uri {
        "pando://sandboxes" => json(client.list().await),
        "pando://tree" => json(client.tree().await),
        "arrakis://vms" => json(
            client
                .list()
                .await
                .map(|list| list.iter().map(vm).collect::<Value>()),
        ),
        _ => Err(nowhere(uri)),
    }
}

fn json(answered: Result<impl Serialize, ClientError>) -> Result<Value, ErrorData> {
    let answer = answered.map_err(failed)?;
    serde_json::to_value(answer).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

/// A sandbox as Arrakis's Python client describes a VM, as far as there is such a thing: what
/// has a URL needs no address and no forwarded port.
fn vm(sandbox: &pando_client::api::Sandbox) -> Value {
    json!({
        "name": sandbox.name.as_ref().unwrap_or(&sandbox.id),
        "status": sandbox.state.to_uppercase(),
        "url_template": sandbox.url_template,
    })
}

fn nowhere(uri: &str) -> ErrorData {
    let failure = Failure::new(
        "resource_not_found",
        format!("there is no resource `{uri}`"),
    )
    .hint("resources/list and resources/templates/list have those there are");
    let data = Some(failure.parts());
    ErrorData::resource_not_found(failure.message, data)
}

fn failed(error: ClientError) -> ErrorData {
    let not_found = matches!(&error, ClientError::Api(refusal) if refusal.status == 404);
    let failure = Failure::from(error);
    let data = Some(failure.parts());
    if not_found {
        ErrorData::resource_not_found(failure.message, data)
    } else {
        ErrorData::internal_error(failure.message, data)
    }
}
