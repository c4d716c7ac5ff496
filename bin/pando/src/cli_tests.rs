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
        ("5d", 432_000_000),
    ] {
        assert_eq!(
            duration(text),
            Ok(Duration::from_millis(milliseconds)),
            "{text}"
        );
    }
    for text in ["", "0", "-1", "5w", "s", "1e400", "nan", "5 m"] {
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

fn snapshot(line: &str) -> Option<SnapshotCommand> {
    match parse(line) {
        Ok(Command::Snapshot(snapshot)) => snapshot.command(),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn a_snapshot_is_taken_in_the_short_form_and_in_the_long_one() {
    for line in [
        "snapshot sabc --name green --disk --label a=1 -l b=2 --note fine",
        "snapshot create sabc --name green --disk --label a=1 -l b=2 --note fine",
        "snapshot --name green --disk -l a=1 -l b=2 --note fine sabc",
        "snapshot --url http://h:1 create --name green --disk -l a=1 -l b=2 --note fine sabc",
    ] {
        let Some(SnapshotCommand::Create(take)) = snapshot(line) else {
            panic!("{line}")
        };
        assert_eq!(take.id.as_deref(), Some("sabc"), "{line}");
        assert_eq!(take.name.as_deref(), Some("green"), "{line}");
        assert_eq!(take.note.as_deref(), Some("fine"), "{line}");
        assert!(take.disk && take.label.len() == 2, "{line}");
    }
}

#[test]
fn the_words_of_snapshot_are_commands_and_never_sandboxes() {
    assert!(matches!(
        snapshot("snapshot ls -q"),
        Some(SnapshotCommand::Ls(SnapshotList {
            list: List { quiet: true, .. },
            ..
        }))
    ));
    assert!(matches!(
        snapshot("snapshot --url http://h:1 ls"),
        Some(SnapshotCommand::Ls(_))
    ));
    assert!(matches!(
        snapshot("snapshot show green --json"),
        Some(SnapshotCommand::Show(SnapshotShow { json: true, .. }))
    ));
    let Some(SnapshotCommand::Rm(rm)) = snapshot("snapshot rm green nabc") else {
        panic!()
    };
    assert_eq!(rm.snapshots, ["green", "nabc"]);
    for line in [
        "snapshot",
        "snapshot --name green",
        "snapshot create",
        "snapshot show",
        "snapshot rm",
        "snapshot sabc sdef",
        "snapshot sabc --label x",
        "snapshot ls -q --json",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    for line in [
        "snapshot --name x ls",
        "snapshot sabc ls",
        "snapshot --disk rm green",
    ] {
        assert!(snapshot(line).is_none(), "{line}");
    }
}

#[test]
fn a_sandbox_is_made_from_a_template_or_a_snapshot() {
    let run = run("run --from green --disk-only --cpus 2 -- true");
    assert_eq!(run.sandbox.from.as_deref(), Some("green"));
    assert!(run.sandbox.disk_only);
    for line in [
        "create --from green -t base",
        "create --from green --start boot",
        "create --disk-only",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn a_fork_has_one_child_unless_told_otherwise() {
    let count = |line: &str| match parse(line) {
        Ok(Command::Fork(fork)) => fork.count,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(count("fork sabc"), 1);
    assert_eq!(count("fork sabc -n 1000 -e A=1 --label b=2 --json"), 1000);
    for line in [
        "fork",
        "fork sabc -n 0",
        "fork sabc -n 1001",
        "fork sabc -n -1",
        "fork sabc -n many",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn rollback_pause_and_resume_name_what_they_are_about() {
    let Ok(Command::Rollback(rollback)) = parse("rollback web green --save before") else {
        panic!()
    };
    assert_eq!(
        (&*rollback.id, &*rollback.snapshot, rollback.save.as_deref()),
        ("web", "green", Some("before"))
    );
    assert!(parse("rollback web").is_err());
    assert!(matches!(parse("pause a b"), Ok(Command::Pause(many)) if many.ids == ["a", "b"]));
    assert!(matches!(parse("resume a"), Ok(Command::Resume(_))));
    assert!(parse("pause").is_err() && parse("resume").is_err());
    assert!(matches!(parse("tree --json"), Ok(Command::Tree(_))));
    assert!(matches!(parse("df"), Ok(Command::Df(_))));
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

#[test]
fn a_flag_demands_keys_of_arrakis_clients() {
    for (line, wanted) in [("serve", None), ("serve --arrakis-auth", Some("always"))] {
        let Ok(Command::Serve(serve)) = parse(line) else {
            panic!("{line}")
        };
        let settings = serve.settings();
        let auth = settings
            .iter()
            .find(|(key, _)| *key == SettingKey::ArrakisAuth);
        assert_eq!(auth.unwrap().1.as_deref(), wanted, "{line}");
    }
}
