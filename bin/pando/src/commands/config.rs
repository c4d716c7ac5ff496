//! `pando config show`: each setting and where its value comes from.

use crate::cli::Json;
use crate::config::{Config, SETTINGS, SettingKey};
use crate::exit;
use crate::output;
use serde::Serialize;

/// A row.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    value: String,
    source: String,
    variable: &'static str,
    default: &'static str,
    meaning: &'static str,
}

/// Shows them.
pub(super) fn show(config: &Config, flags: &Json) -> anyhow::Result<u8> {
    let rows: Vec<Row> = SETTINGS
        .iter()
        .map(|setting| Row {
            name: setting.name,
            value: shown(config, setting.key),
            source: config.source(setting.key).to_string(),
            variable: setting.variable,
            default: setting.default,
            meaning: setting.meaning,
        })
        .collect();
    if flags.json {
        output::json(&rows)?;
    } else {
        let cells = |row: Row| {
            vec![
                row.name.to_owned(),
                row.value,
                row.source,
                row.variable.to_owned(),
            ]
        };
        output::table(
            &["SETTING", "VALUE", "FROM", "VARIABLE"],
            &rows.into_iter().map(cells).collect::<Vec<_>>(),
        );
    }
    Ok(exit::DONE)
}

/// A value as it may be seen: never a key.
fn shown(config: &Config, key: SettingKey) -> String {
    match key {
        SettingKey::Url => config.url(),
        SettingKey::ApiKey if config.get(key).is_empty() => {
            format!("in {}", config.admin_key_file().display())
        }
        SettingKey::ApiKey => "set, not shown".to_owned(),
        _ => config.get(key).to_owned(),
    }
}
