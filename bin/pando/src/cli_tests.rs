use super::*;
use clap::CommandFactory;

fn parse(line: &str) -> Result<Command, clap::Error> {
    let line: Vec<_> = std::iter::once("pando")
        .chain(line.split_whitespace())
        .map(OsString::from)
        .collect();
    Cli::read(&line).map(|cli| cli.command)
}

fn run(line: &str) -> Run {
    match parse(line) {
        Ok(Command::Run(run)) => run,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn run_takes_a_program_after_two_dashes() {
    let run = run(
        "run -t base -e A=1 -e B=x=y -w /tmp -u root --timeout 5m -- python3 -c print(1) -t --keep",
    );
    assert_eq!(run.words, ["python3", "-c", "print(1)", "-t", "--keep"]);
    assert!(run.after_dashes && !run.keep);
    assert_eq!(run.sandbox.template.as_deref(), Some("base"));
    assert_eq!(
        run.program.env,
        [
            ("A".to_owned(), "1".to_owned()),
            ("B".to_owned(), "x=y".to_owned())
        ]
    );
    assert_eq!(run.program.timeout, Some(Duration::from_secs(300)));
    assert_eq!(run.program.user.as_deref(), Some("root"));
}

#[test]
fn run_takes_a_file_and_leaves_its_arguments_alone() {
    let run = run("run --keep ./script.py -e x --keep -it");
    assert_eq!(run.words, ["./script.py", "-e", "x", "--keep", "-it"]);
    assert!(
        run.keep && !run.after_dashes && run.program.env.is_empty() && !run.program.wants_tty()
    );
}

#[test]
fn dashes_among_a_files_arguments_are_its_own() {
    let run = run("run ./script.py -- x");
    assert_eq!(run.words, ["./script.py", "--", "x"]);
    assert!(!run.after_dashes);
}

#[test]
fn run_wants_a_file_or_a_program() {
    assert!(parse("run").is_err());
    assert!(parse("run --").is_err());
}

#[test]
fn it_is_a_terminal_and_t_is_a_template() {
    assert!(run("run -it -- bash").program.wants_tty());
    assert!(run("run --tty -- bash").program.wants_tty());
    let both = run("run -it -t desktop -- bash");
    assert!(both.program.wants_tty());
    assert_eq!(both.sandbox.template.as_deref(), Some("desktop"));
    assert!(!run("run -t it -- bash").program.wants_tty());
}

#[test]
fn exec_takes_its_program_with_or_without_dashes() {
    for line in ["exec -it sabc -- ls -la", "exec -it sabc ls -la"] {
        let Ok(Command::Exec(exec)) = parse(line) else {
            panic!("{line}")
        };
        assert_eq!(
            (exec.id.as_str(), exec.argv.join(" ").as_str()),
            ("sabc", "ls -la"),
            "{line}"
        );
        assert!(exec.program.wants_tty());
    }
    assert!(parse("exec sabc").is_err());
    assert!(parse("exec -d -it sabc -- ls").is_err());
}

#[test]
fn times_and_pairs_are_checked() {
    for (text, milliseconds) in [
        ("90", 90_000),
        ("1.5s", 1500),
        ("250ms", 250),
        ("2m", 120_000),
        ("1h", 3_600_000),
    ] {
        assert_eq!(
            duration(text),
            Ok(Duration::from_millis(milliseconds)),
            "{text}"
        );
    }
    for text in ["", "0", "-1", "5d", "s", "1e400", "nan", "5 m"] {
        assert!(duration(text).is_err(), "{text}");
    }
    assert!(pair("A").is_err() && pair("=x").is_err());
    assert_eq!(pair("A="), Ok(("A".to_owned(), String::new())));
}

#[test]
fn stop_and_logs_work_with_and_without_an_id() {
    assert!(matches!(
        parse("stop"),
        Ok(Command::Stop(Stop { id: None }))
    ));
    assert!(matches!(
        parse("stop sabc"),
        Ok(Command::Stop(Stop { id: Some(_) }))
    ));
    assert!(matches!(
        parse("logs"),
        Ok(Command::Logs(Logs { id: None, .. }))
    ));
    assert!(parse("rm").is_err());
    assert!(parse("ls -q --json").is_err());
    assert!(matches!(parse("ls --url http://h:1"), Ok(Command::Ls(_))));
}

/// `docs/cli.md`, made from the definitions.
fn documentation() -> String {
    use std::fmt::Write as _;
    let mut text = String::from(
        "# The command line\n\n\
         <!-- Generated from bin/pando/src; `PANDO_BLESS=1 cargo test -p pando` rewrites it. -->\n\n\
         stdout is data, stderr is talk. A command that makes one thing prints its id alone on a line.\n\
         Lists are a table for people, `--json` for programs, `-q` for ids.\n\n\
         ## Exit codes\n\n| code | meaning |\n|---|---|\n",
    );
    for (code, meaning) in crate::exit::TABLE {
        let _ = writeln!(text, "| {code} | {meaning} |");
    }
    text.push_str(
        "\n## Settings\n\nA flag beats the environment, the environment beats the configuration file. `pando config show`\n\
         prints every value and where it comes from, `pando doctor --paths` every path.\n\n\
         | in the file | variable | default | meaning |\n|---|---|---|---|\n",
    );
    for setting in crate::config::SETTINGS {
        let name = if setting.key == SettingKey::ConfigFile {
            ""
        } else {
            setting.name
        };
        let _ = writeln!(
            text,
            "| {name} | `{}` | {} | {} |",
            setting.variable, setting.default, setting.meaning
        );
    }
    text.push_str("\n## Commands\n");
    document(&mut text, "pando", &mut Cli::command().term_width(100));
    text
}

fn document(text: &mut String, name: &str, command: &mut clap::Command) {
    use std::fmt::Write as _;
    let help = command
        .clone()
        .bin_name(name)
        .render_long_help()
        .to_string();
    let trimmed: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(
        text,
        "\n### {name}\n\n```text\n{}\n```\n",
        trimmed.join("\n").trim_end()
    );
    let width = |command: &clap::Command| command.clone().term_width(100);
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        document(
            text,
            &format!("{name} {}", inner.get_name()),
            &mut width(inner),
        );
    }
}

#[test]
fn the_documentation_is_what_the_definitions_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    if std::env::var_os("PANDO_BLESS").is_some() {
        std::fs::write(path, documentation()).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == documentation(),
        "docs/cli.md is stale: run `PANDO_BLESS=1 cargo test -p pando`"
    );
}
