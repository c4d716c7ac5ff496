//! The tools' JSON schemas, made small: a model reads all of them before its first call.

use rmcp::model::{JsonObject, Tool};
use serde_json::Value;
use std::sync::Arc;

/// Takes out what tells a model nothing.
pub(crate) fn slim(tool: &mut Tool) {
    let mut input = Value::Object((*tool.input_schema).clone());
    slim_schema(&mut input, true);
    tool.input_schema = object(input);
    if let Some(output) = &tool.output_schema {
        let mut output = Value::Object((**output).clone());
        slim_schema(&mut output, false);
        tool.output_schema = Some(object(output));
    }
}

fn object(schema: Value) -> Arc<JsonObject> {
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

/// `described`: whether descriptions are kept. Names with units say enough about what comes out.
fn slim_schema(schema: &mut Value, described: bool) {
    let Value::Object(map) = schema else {
        return;
    };
    // Unknown arguments are refused in words, and every field of an answer is always there.
    for key in ["$schema", "title", "format", "default"] {
        map.remove(key);
    }
    if map.get("additionalProperties") == Some(&Value::Bool(false)) {
        map.remove("additionalProperties");
    }
    if !described {
        map.remove("description");
        map.remove("required");
    }
    // An argument that may be left out need not be null as well.
    if described && let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = &**types {
            let kind = kind.clone();
            map.insert("type".to_owned(), kind);
        }
    }
    if map
        .get("minimum")
        .is_some_and(|least| least.as_f64() == Some(0.0))
    {
        map.remove("minimum");
    }
    for (key, part) in map.iter_mut() {
        match (key.as_str(), part) {
            // Its keys are names of fields, which may be called `title` or `format`.
            ("properties" | "$defs", Value::Object(fields)) => {
                fields
                    .values_mut()
                    .for_each(|field| slim_schema(field, described));
            }
            ("required" | "enum" | "type", _) => {}
            (_, Value::Array(parts)) => {
                parts
                    .iter_mut()
                    .for_each(|part| slim_schema(part, described));
            }
            (_, part) => slim_schema(part, described),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;
    use std::collections::BTreeSet;

    /// A fair part of a model's context, and no more.
    const TOOLS_BYTES: usize = 24_000;

    #[test]
    fn all_tools_together_are_small() {
        let listed = serde_json::to_vec(&serde_json::json!({ "tools": Server::tools() })).unwrap();
        assert!(
            listed.len() <= TOOLS_BYTES,
            "tools/list is {} bytes, the most is {TOOLS_BYTES}",
            listed.len()
        );
    }

    /// A row for each tool: its name and the first sentence of its description.
    fn tools_as_markdown() -> String {
        let mut table = String::from("| tool | what it does |\n|---|---|\n");
        for tool in Server::tools() {
            let description = tool.description.as_deref().unwrap_or_default();
            let description = description.replace('\n', " ");
            let sentence = description.split_inclusive(". ").next().unwrap_or_default();
            table.push_str(&format!("| `{}` | {} |\n", tool.name, sentence.trim()));
        }
        table
    }

    #[test]
    fn the_documentation_lists_the_tools() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mcp.md");
        let text = std::fs::read_to_string(path).unwrap();
        let begin = text.find("<!-- tools: begin").unwrap();
        let begin = begin + text[begin..].find('\n').unwrap();
        let end = text.find("<!-- tools: end -->").unwrap();
        let right = format!(
            "{}\n\n{}\n{}",
            &text[..begin],
            tools_as_markdown(),
            &text[end..]
        );
        if std::env::var_os("PANDO_BLESS").is_some() {
            std::fs::write(path, &right).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == right,
            "docs/mcp.md is stale: run `PANDO_BLESS=1 cargo nextest run -p pando-mcp`"
        );
    }

    #[test]
    fn the_tools_of_arrakis_are_there() {
        let tools = Server::tools();
        let names: BTreeSet<_> = tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names.len(), tools.len(), "a name is there twice");
        for name in [
            "start_sandbox",
            "restore_snapshot",
            "snapshot",
            "run_command",
            "upload_file",
            "download_file",
            "destroy_vm",
            "destroy_all_vms",
            "update_vm_state",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn tools_of_both_sets_take_both_forms() {
        let tools = Server::tools();
        for (name, arguments) in [
            ("run_command", &["sandbox", "vm_name", "cmd", "argv"][..]),
            ("snapshot", &["sandbox", "vm_name", "name", "snapshot_id"]),
            ("upload_file", &["sandbox", "vm_name", "path", "content"]),
            ("download_file", &["sandbox", "vm_name", "path"]),
        ] {
            let tool = tools.iter().find(|tool| tool.name == name).unwrap();
            for argument in arguments {
                assert!(
                    tool.input_schema["properties"].get(argument).is_some(),
                    "{name}: {argument}"
                );
            }
        }
    }

    #[test]
    fn every_tool_says_what_a_model_needs() {
        for tool in Server::tools() {
            let name = &tool.name;
            let description = tool.description.as_deref().unwrap_or_default();
            assert!(description.contains("Example: {"), "{name} has no example");
            assert!(description.contains("Not "), "{name}: when not to use it");
            assert!(tool.output_schema.is_some(), "{name} has no output schema");
            let hints = tool.annotations.as_ref().unwrap();
            assert!(hints.read_only_hint.is_some(), "{name}");
            assert!(
                hints.read_only_hint == Some(true) || hints.destructive_hint.is_some(),
                "{name}"
            );
            assert_eq!(tool.input_schema["type"], "object", "{name}");
        }
    }

    /// Name, description and kind of each argument of a tool, and whether it may be left out.
    fn arguments(tool: &Tool) -> Vec<(String, String, String, bool)> {
        let required = tool.input_schema.get("required").and_then(Value::as_array);
        let is_required =
            |name: &str| required.is_some_and(|names| names.iter().any(|each| each == name));
        let none = serde_json::Map::new();
        let fields = tool.input_schema.get("properties");
        let fields = fields.and_then(Value::as_object).unwrap_or(&none);
        let word = |schema: &Value, key: &str| schema[key].as_str().unwrap_or_default().to_owned();
        let described = fields.iter().map(|(field, schema)| {
            let text = word(schema, "description");
            (
                field.clone(),
                text,
                word(schema, "type"),
                !is_required(field),
            )
        });
        described.collect()
    }

    #[test]
    fn every_argument_says_its_default_and_its_unit() {
        for tool in Server::tools() {
            for (field, text, kind, optional) in arguments(&tool) {
                let at = format!("{}: `{field}`: {text:?}", tool.name);
                assert!(!text.is_empty(), "{at} has no description");
                // One of two names, of which one must be given.
                let one_of_two = text.contains("`vm_name`") || text.contains("`argv`");
                let stands_for_another =
                    text.contains("The same as") || text.contains("Instead of");
                assert!(
                    !optional || one_of_two || stands_for_another || text.contains("left out"),
                    "{at} does not say what it is when it is left out"
                );
                let units = [
                    "Seconds",
                    "Bytes",
                    "MiB",
                    "1, 2, 4 or 8",
                    "port",
                    "How many",
                    "signal number",
                    "Entries",
                ];
                assert!(
                    !["integer", "number"].contains(&&*kind)
                        || units.iter().any(|unit| text.contains(unit)),
                    "{at} does not say its unit"
                );
            }
        }
    }

    #[test]
    fn every_example_fits_its_schema() {
        for tool in Server::tools() {
            let description = tool.description.as_deref().unwrap_or_default();
            let example = description.split("Example: ").nth(1).unwrap();
            let mut parsed = serde_json::Deserializer::from_str(example).into_iter::<Value>();
            let example = parsed.next().unwrap().unwrap();
            let none = serde_json::Map::new();
            let fields = tool.input_schema.get("properties");
            let fields = fields.and_then(Value::as_object).unwrap_or(&none);
            for field in example.as_object().unwrap().keys() {
                assert!(fields.contains_key(field), "{}: {field}", tool.name);
            }
            let required = tool.input_schema.get("required").and_then(Value::as_array);
            for field in required.into_iter().flatten() {
                let field = field.as_str().unwrap();
                assert!(example.get(field).is_some(), "{}: {field}", tool.name);
            }
        }
    }
}
