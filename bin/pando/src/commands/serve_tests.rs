use super::*;
use crate::cli::{Cli, Command};
use crate::config::Surroundings;
use std::ffi::OsString;

fn settings(arguments: &[String]) -> Vec<(SettingKey, Option<String>)> {
    let program = std::iter::once("pando".to_owned());
    let line: Vec<OsString> = program
        .chain(arguments.to_vec())
        .map(OsString::from)
        .collect();
    match Cli::read(&line).map(|cli| cli.command) {
        Ok(Command::Serve(serve)) => serve.settings(),
        other => panic!("{arguments:?}: {other:?}"),
    }
}

#[test]
fn a_daemon_in_the_background_gets_every_flag() {
    let line = "serve --listen 127.0.0.1:1 --public-url https://*.example --port-bind 127.0.0.2 \
                --port-range 5-9 --port-access token --arrakis-auth --accel tcg --warm 0";
    let flags = settings(
        &line
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    );
    assert!(flags.iter().all(|(_, value)| value.is_some()), "{flags:?}");
    let surroundings = Surroundings {
        variable: &|name| (name == "HOME").then(|| "/h".to_owned()),
        root: false,
    };
    let config = Config::load(&flags, &surroundings).unwrap();
    assert_eq!(settings(&background_arguments(&config)), flags);
}
