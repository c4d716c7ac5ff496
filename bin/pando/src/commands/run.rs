//! `pando run`: a program in a sandbox of its own.

use super::{create, stream_request};
use crate::cli::Run;
use crate::exit::{self, Failure};
use crate::follow::{self, Interrupts, OnSignal};
use crate::output;
use anyhow::Context as _;
use bytes::Bytes;
use pando_client::{Client, FileSource};
use std::path::Path;

/// A file to run is read whole; larger ones are data and belong to `cp`.
const FILE_BYTES: u64 = 64 << 20;

/// Where it is put when it does not run in the home.
const ELSEWHERE: &str = "/tmp/pando-run";

/// Runs a program, or a file, in a new sandbox.
pub(super) async fn run(client: Client, flags: Run) -> anyhow::Result<u8> {
    let script = if flags.after_dashes {
        None
    } else {
        Some(Script::read(&flags.words, flags.program.workdir.is_some())?)
    };
    let argv = script
        .as_ref()
        .map_or(flags.words, |script| script.argv.clone());
    // What is wrong with the command line is found before anything is made.
    let request = stream_request(&flags.program, argv)?;
    let mut interrupts = Interrupts::catch()?;
    let wanted = create::request(&flags.sandbox);
    let sandbox = tokio::select! {
        made = create::make(&client, &wanted) => made?.id,
        // The daemon removes what it was making when we hang up.
        signal = interrupts.next() => return Ok(exit::of_signal(signal)),
    };
    let work = async {
        if let Some(script) = script {
            let user = flags.program.user.as_deref();
            client
                .write_file(
                    &sandbox,
                    &script.name,
                    user,
                    FileSource::bytes(script.contents),
                )
                .await?;
        }
        follow::follow(&client, &sandbox, &request, OnSignal::End, &mut interrupts).await
    };
    let outcome = work.await;
    if flags.keep {
        output::note(&format!("kept sandbox {sandbox}"));
    } else {
        tokio::select! {
            () = remove(&client, &sandbox) => {}
            signal = interrupts.next() => {
                output::note(&format!("warning: left before sandbox {sandbox} was removed"));
                return Ok(exit::of_signal(signal));
            }
        }
    }
    Ok(outcome?.code())
}

async fn remove(client: &Client, sandbox: &str) {
    match client.remove(sandbox).await {
        Err(error) if error.code() != Some("sandbox_not_found") => {
            output::note(&format!(
                "warning: cannot remove sandbox {sandbox}: {error}"
            ));
        }
        _ => {}
    }
}

/// A file of this machine that is run in the sandbox.
#[derive(Debug)]
struct Script {
    /// Its path there; relative to the user's home.
    name: String,
    contents: Bytes,
    /// How it is run.
    argv: Vec<String>,
}

impl Script {
    /// Reads it. `elsewhere`: it will not run in the home, where its name alone would do.
    fn read(words: &[String], elsewhere: bool) -> anyhow::Result<Self> {
        let (file, arguments) = words.split_first().context("no file")?;
        let path = Path::new(file);
        let metadata = std::fs::metadata(path).with_context(|| format!("cannot read `{file}`"))?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("`{file}` is a directory")).into());
        }
        if metadata.len() > FILE_BYTES {
            return Err(Failure::usage(format!(
                "`{file}` is larger than {}",
                output::bytes(FILE_BYTES)
            ))
            .into());
        }
        let contents = std::fs::read(path).with_context(|| format!("cannot read `{file}`"))?;
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .context("the file's name is not UTF-8")?;
        // `./` keeps a name such as `-c` from being taken for an option.
        let mut argv = interpreter(name, &contents).ok_or_else(|| {
            Failure::usage(format!("cannot tell how to run `{file}`"))
                .hint("give it the ending .py, .js or .sh, or a first line such as `#!/usr/bin/env python3`")
        })?;
        let name = if elsewhere {
            format!("{ELSEWHERE}/{name}")
        } else {
            format!("./{name}")
        };
        argv.push(name.clone());
        argv.extend(arguments.iter().cloned());
        Ok(Self {
            name,
            contents: contents.into(),
            argv,
        })
    }
}

/// What runs a file: by its ending, else by its `#!` line.
fn interpreter(name: &str, contents: &[u8]) -> Option<Vec<String>> {
    let by_ending = match Path::new(name)
        .extension()
        .and_then(|ending| ending.to_str())
    {
        Some("py") => Some("python3"),
        Some("js") => Some("node"),
        Some("sh") => Some("bash"),
        _ => None,
    };
    if let Some(program) = by_ending {
        return Some(vec![program.to_owned()]);
    }
    let line = contents
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let line = std::str::from_utf8(line).ok()?.trim();
    // As the kernel reads it: one argument at most, spaces and all.
    let mut words = line
        .splitn(2, [' ', '\t'])
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let program = words.next()?.to_owned();
    Some(
        std::iter::once(program)
            .chain(words.next().map(str::to_owned))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_run_by_its_ending_or_its_first_line() {
        let found = |name, contents: &str| {
            interpreter(name, contents.as_bytes()).map(|words| words.join("|"))
        };
        assert_eq!(found("a.py", "#!/bin/sh"), Some("python3".to_owned()));
        assert_eq!(found("a.b.sh", ""), Some("bash".to_owned()));
        assert_eq!(found("a.js", ""), Some("node".to_owned()));
        assert_eq!(
            found("a", "#!/usr/bin/env python3\nx"),
            Some("/usr/bin/env|python3".to_owned())
        );
        assert_eq!(
            found("a", "#! /bin/sh -e -u\n"),
            Some("/bin/sh|-e -u".to_owned())
        );
        assert_eq!(found("a", "#!\n"), None);
        assert_eq!(found("a.txt", "hello"), None);
    }

    #[test]
    fn a_script_keeps_its_arguments_and_its_name_is_no_option() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("-c.py");
        std::fs::write(&file, "print(1)").unwrap();
        let script = Script::read(&[file.display().to_string(), "-x".to_owned()], false).unwrap();
        assert_eq!(script.argv, ["python3", "./-c.py", "-x"]);
        assert_eq!(script.name, "./-c.py");
        let error = Script::read(&[dir.path().display().to_string()], false).unwrap_err();
        assert!(error.to_string().ends_with("is a directory"));
        assert_eq!(exit::of_error(&error, true), exit::USAGE);
        assert!(Script::read(&["/nowhere/x.py".to_owned()], false).is_err());
    }
}
