use super::*;
use crate::arrakis::every_route;
use pando_api::openapi;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn as_value() -> Value {
    serde_json::from_str(&openapi::json(&document()).unwrap()).unwrap()
}

/// Method and path of each operation of the document, with it.
fn described(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let each = paths.iter().flat_map(|(path, item)| {
        let operations = item.as_object().unwrap().iter();
        operations.map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
    });
    each.collect()
}

#[test]
fn the_committed_document_is_the_served_one() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/arrakis-openapi.json"
    );
    let served = openapi::json(&document()).unwrap();
    if std::env::var_os("PANDO_BLESS").is_some() {
        std::fs::write(path, &served).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == served,
        "docs/arrakis-openapi.json is stale: run `PANDO_BLESS=1 cargo test -p pando-http`"
    );
}

#[test]
fn it_has_every_route_with_every_method_and_no_other() {
    let document = as_value();
    let described: Vec<_> = described(&document)
        .into_iter()
        .map(|(method, path, _)| (method, path))
        .collect();
    let (newer, older): (BTreeSet<_>, BTreeSet<_>) = every_route()
        .into_iter()
        .map(|(method, path)| (method.to_owned(), path))
        .partition(|(_, path)| path.starts_with("/v1/"));
    assert_eq!(BTreeSet::from_iter(described.iter().cloned()), newer);
    assert_eq!(described.len(), OPERATIONS.len());
    // What the description says of the older paths.
    let without = described
        .into_iter()
        .map(|(method, path)| (method, path["/v1".len()..].to_owned()));
    assert_eq!(BTreeSet::from_iter(without), older);
}

#[test]
fn nothing_in_it_refers_to_what_is_not_there() {
    let text = openapi::json(&document()).unwrap();
    let value = as_value();
    let references = text.split("\"$ref\": \"#").skip(1);
    for reference in references {
        let pointer = reference.split('"').next().unwrap();
        assert!(
            value.pointer(pointer).is_some_and(Value::is_object),
            "{pointer} is referred to and missing"
        );
    }
    assert!(
        openapi::yaml(&document())
            .unwrap()
            .starts_with("openapi: 3.")
    );
}

#[test]
fn refusals_are_those_that_are_written_and_each_is_said_of_some_operation() {
    let document = as_value();
    let mut said = BTreeSet::new();
    for (method, path, operation) in described(&document) {
        let what = format!("{method} {path}");
        for status in operation["responses"].as_object().unwrap().keys() {
            if status != "default" {
                said.insert(status.parse::<u16>().unwrap());
            }
        }
        for status in ["200", "401", "415", "421", "500", "default"] {
            assert!(
                operation["responses"][status].is_object(),
                "{what}: {status}"
            );
        }
        let of_a_vm = path.contains("{name}");
        assert!(
            !of_a_vm || operation["responses"]["404"].is_object(),
            "{what}"
        );
        let has_body = operation["requestBody"].is_object();
        assert_eq!(
            has_body,
            operation["responses"]["413"].is_object(),
            "{what}"
        );
    }
    let listed = REFUSALS.iter().map(|(status, ..)| *status);
    assert_eq!(said, listed.chain([200]).collect());
    let known: BTreeSet<_> = crate::ERRORS.iter().map(|row| row.status).collect();
    for (status, name, _) in REFUSALS {
        assert!(known.contains(status), "nothing is refused with {status}");
        let schema = &document["components"]["responses"][name]["content"]["application/json"];
        assert_eq!(
            schema["schema"]["$ref"], "#/components/schemas/Refused",
            "{name}"
        );
    }
}

#[test]
fn a_key_can_be_left_out_or_sent_in_three_ways() {
    let document = as_value();
    let security = &document["security"];
    assert_eq!(
        security.to_string(),
        r#"[{},{"bearer":[]},{"api_key":[]},{"basic":[]}]"#
    );
    let schemes = &document["components"]["securitySchemes"];
    assert_eq!(schemes["bearer"]["scheme"], "bearer");
    assert_eq!(schemes["basic"]["scheme"], "basic");
    assert_eq!(schemes["api_key"]["name"], "X-API-Key");
    for (method, path, operation) in described(&document) {
        assert!(operation["security"].is_null(), "{method} {path}");
    }
}

/// A request of a client, and where it looks in the answer; end-to-end tests send it.
#[derive(serde::Deserialize)]
struct Step {
    what: String,
    method: String,
    path: String,
    #[serde(default)]
    body: Option<Value>,
    status: u16,
    #[serde(default)]
    reads: serde_json::Map<String, Value>,
}

/// The operation that a request's path and method are.
fn operation_of<'a>(document: &'a Value, step: &Step) -> &'a Value {
    let asked = format!("/v1{}", step.path.split('?').next().unwrap());
    let same = |path: &str| {
        let (path, asked): (Vec<_>, Vec<_>) =
            (path.split('/').collect(), asked.split('/').collect());
        path.len() == asked.len()
            && path
                .iter()
                .zip(&asked)
                .all(|(part, word)| part == word || part.starts_with('{'))
    };
    let mut all = described(document).into_iter();
    let found = all.find(|(method, path, _)| *method == step.method && same(path));
    found
        .unwrap_or_else(|| panic!("{}: no such operation", step.what))
        .2
}

fn schema_of<'a>(document: &'a Value, holder: &'a Value) -> &'a Value {
    let schema = &holder["content"]["application/json"]["schema"];
    followed(document, schema)
}

fn followed<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// Whether a request fits its schema; fields that are not described are ignored.
fn fits(document: &Value, schema: &Value, value: &Value) -> bool {
    let schema = followed(document, schema);
    if let Some(words) = schema["enum"].as_array() {
        return words.contains(value);
    }
    let kind = |name: &str| match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|kind| kind == name),
        kind => kind == name,
    };
    match value {
        Value::Null => kind("null"),
        Value::Bool(_) => kind("boolean"),
        Value::Number(_) => kind("integer"),
        Value::String(_) => kind("string"),
        Value::Array(items) => {
            kind("array")
                && items
                    .iter()
                    .all(|item| fits(document, &schema["items"], item))
        }
        Value::Object(fields) => {
            let required = schema["required"].as_array().into_iter().flatten();
            let mut required = required.map(|name| name.as_str().unwrap());
            let described = |name: &String| schema["properties"].get(name);
            kind("object")
                && required.all(|name| fields.contains_key(name))
                && fields
                    .iter()
                    .filter_map(|(name, field)| Some((described(name)?, field)))
                    .all(|(described, field)| fits(document, described, field))
        }
    }
}

#[test]
fn it_describes_what_clients_send_and_where_they_look() {
    let document = as_value();
    let recorded = [
        include_str!("../../../../tests/e2e/tests/arrakis/command_line.json"),
        include_str!("../../../../tests/e2e/tests/arrakis/mcp_server.json"),
    ];
    for steps in recorded {
        let steps: Vec<Step> = serde_json::from_str(steps).unwrap();
        for step in steps {
            let operation = operation_of(&document, &step);
            let response = &operation["responses"][step.status.to_string()];
            let response = followed(&document, response);
            assert!(response.is_object(), "{}: {}", step.what, step.status);
            if let Some(body) = &step.body {
                let schema = schema_of(&document, &operation["requestBody"]);
                let fitting = fits(&document, schema, body);
                assert_eq!(fitting, step.status != 400, "{}: {body}", step.what);
            }
            for (pointer, expected) in &step.reads {
                let mut schema = schema_of(&document, response);
                for part in pointer.split('/').skip(1) {
                    let inner = match schema["items"].is_object() {
                        true => &schema["items"],
                        false => &schema["properties"][part],
                    };
                    schema = followed(&document, inner);
                }
                assert!(schema.is_object(), "{}: {pointer}", step.what);
                let fitting = expected.is_null() || fits(&document, schema, expected);
                assert!(fitting, "{}: {pointer}: {expected}", step.what);
            }
        }
    }
}

#[test]
fn what_is_not_as_described_does_not_fit() {
    let document = as_value();
    let fits = |name: &str, value: Value| {
        fits(&document, &document["components"]["schemas"][name], &value)
    };
    for (name, good, bad) in [
        (
            "StartVm",
            json!({ "vmName": "a", "kernel": null }),
            json!({}),
        ),
        (
            "ChangeVm",
            json!({ "status": "resume" }),
            json!({ "status": "running" }),
        ),
        ("RunCommand", json!({ "cmd": "a" }), json!({ "cmd": null })),
        ("KeepVm", json!({}), json!({ "snapshotId": 1 })),
        (
            "Upload",
            json!({ "files": [] }),
            json!({ "files": [{ "path": "a" }] }),
        ),
    ] {
        assert!(fits(name, good), "{name}");
        assert!(!fits(name, bad), "{name}");
    }
}
