//! Every console block of README and docs/quickstart.md, typed as a reader would.
//!
//! `$ ` begins a command and `> ` goes on with it; what follows is its output, compared
//! after ids, times and dates are taken out. A line `...` stands for any lines.

use pando_testkit::{Options, World, pando};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

#[test]
fn readme_says_what_happens() {
    check("README.md");
}

#[test]
fn quickstart_says_what_happens() {
    check("docs/quickstart.md");
}

struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
}

fn check(document: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(document);
    let text = std::fs::read_to_string(&path).unwrap();
    let steps = steps(&text);
    assert!(!steps.is_empty(), "{document} has no console block");
    // As a reader's daemon is: with clones that wait.
    let world = World::with(Options {
        env: vec![("PANDO_WARM".to_owned(), "auto".to_owned())],
        ..Options::default()
    });
    let mut shell = Shell::start(&world);
    for step in steps {
        let said = shell.run(&step.command);
        let (expected, found) = (filter_all(&step.output), filter_all(&said));
        assert!(
            fits(&expected, &found),
            "{document}:{}: $ {}\n--- expected\n{}\n--- said\n{}",
            step.line,
            step.command,
            step.output.join("\n"),
            said.join("\n")
        );
    }
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        match (inside, line.trim_end()) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, line) => match (
                line.strip_prefix("$ "),
                line.strip_prefix("> "),
                steps.last_mut(),
            ) {
                (Some(command), ..) => steps.push(Step {
                    line: index + 1,
                    command: command.to_owned(),
                    output: Vec::new(),
                }),
                (None, Some(more), Some(step)) if step.output.is_empty() => {
                    step.command = format!("{}\n{more}", step.command);
                }
                (None, _, Some(step)) => step.output.push(line.to_owned()),
                _ => panic!("line {}: a console block begins with `$ `", index + 1),
            },
            _ => {}
        }
    }
    steps
}

fn filter_all(lines: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = lines.iter().map(|line| filter(line)).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Takes out what differs each time: ids, times, dates, sizes, and the width of columns.
fn filter(line: &str) -> String {
    let mut words: Vec<String> = line.split_whitespace().map(filter_word).collect();
    for at in 1..words.len() {
        let is_unit = ["B", "KiB", "MiB", "GiB", "s"].contains(&words[at].as_str());
        let is_number = words[at - 1] == "<time>" || words[at - 1].parse::<f64>().is_ok();
        if is_unit && is_number {
            // Its unit too: what is small on one machine is larger on another.
            words[at - 1] = "<size>".to_owned();
            words[at] = String::new();
        }
    }
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

fn filter_word(word: &str) -> String {
    let core = word.trim_matches(|c: char| "\",.()[]{}:`".contains(c));
    let is_id = core.len() == 20
        && core.starts_with(['s', 'n', 't'])
        && core
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let unitless = core
        .trim_end_matches("ms")
        .trim_end_matches(['s', 'm', 'h']);
    let is_time = unitless.len() < core.len() && unitless.parse::<f64>().is_ok();
    let is_date =
        core.len() >= 19 && core.starts_with("20") && core.contains('T') && core.contains(':');
    let is_number = core.parse::<f64>().is_ok() && core.contains('.') && core.len() > 4;
    if core.is_empty() {
        word.to_owned()
    } else if is_id {
        word.replace(core, "<id>")
    } else if is_time || is_number {
        word.replace(core, "<time>")
    } else if is_date {
        word.replace(core, "<date>")
    } else {
        word.to_owned()
    }
}

/// Whether `found` is `expected`, in which `...` stands for any lines.
fn fits(expected: &[String], found: &[String]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=found.len()).any(|skip| fits(rest, &found[skip..]))
        }
        Some((first, rest)) => found
            .split_first()
            .is_some_and(|(line, others)| line == first && fits(rest, others)),
    }
}

/// A bash whose variables and directory last from one command to the next.
struct Shell {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const MARK: &str = "--- end of command ---";

impl Shell {
    fn start(world: &World) -> Self {
        let home = world.scratch("home");
        std::fs::create_dir(&home).unwrap();
        let programs = pando().parent().unwrap().canonicalize().unwrap();
        let path = format!(
            "{}:{}",
            programs.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut process = Command::new("bash")
            .current_dir(&home)
            .env("HOME", &home)
            .env("PATH", path)
            .env("PANDO_STATE_DIR", world.state_dir())
            .env("PANDO_URL", world.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            input,
            output,
        }
    }

    fn run(&mut self, command: &str) -> Vec<String> {
        writeln!(
            self.input,
            "{{ {command}\n}} </dev/null 2>&1; echo; echo '{MARK}'"
        )
        .unwrap();
        let mut lines = Vec::new();
        for line in (&mut self.output).lines() {
            let line = line.unwrap();
            if line == MARK {
                return lines;
            }
            lines.push(line);
        }
        panic!("the shell ended after `{command}`");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
