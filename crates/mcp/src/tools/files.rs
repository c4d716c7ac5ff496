//! Files of a sandbox. Their contents travel in the messages: no path here is one of the
//! machine that the client or the daemon runs on.

use super::shapes::lines;
use crate::answer::{Answer, Done, Failure};
use crate::arguments;
use crate::server::{Call, Server};
use crate::text::{Fence, clean, whole_characters};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures::TryStreamExt;
use pando_client::FileSource;
use pando_client::api::FileType;
use rmcp::handler::server::common::Extension;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A part of a file in one answer of `read_file`.
const READ_BYTES: u64 = 32 << 10;

/// The most of a file in one answer. With base64 and its escapes it stays below the 1 MiB
/// that official clients take in one event.
const MAX_READ_BYTES: u64 = 256 << 10;

/// A file that is written, whole. In base64 it fits a message over HTTP.
const MAX_WRITE_BYTES: usize = 2 << 20;

/// Entries of a directory in one answer.
const ENTRIES: usize = 500;

/// How deep a listing may go.
const MAX_DEPTH: u32 = 16;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// Id or name.
    sandbox: String,
    /// Absolute, or relative to the home directory.
    path: String,
    /// Bytes to skip: next_offset of the last answer; 0 when left out.
    #[serde(default)]
    offset: u64,
    /// Bytes in the answer; 32768 when left out, at most 262144.
    max_bytes: Option<u64>,
    /// Account; `user` when left out.
    user: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// Id or name.
    sandbox: String,
    /// Absolute, or relative to the home directory. Missing directories are made.
    path: String,
    /// The whole text; what was there is replaced.
    content: String,
    /// Owner; `user` when left out.
    user: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListFiles {
    /// Id or name.
    sandbox: String,
    /// Absolute, or relative to the home directory, which it is when left out.
    path: Option<String>,
    /// How many levels, 1 to 16; 1 when left out.
    depth: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UploadFile {
    /// Id or name; or give `vm_name`.
    sandbox: Option<String>,
    /// The same as `sandbox`.
    vm_name: Option<String>,
    /// Where to, inside. Missing directories are made.
    path: String,
    /// The contents, at most 2 MiB.
    content: String,
    /// `text` or `base64`; `text` when left out.
    #[serde(default)]
    encoding: Encoding,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DownloadFile {
    /// Id or name; or give `vm_name`.
    sandbox: Option<String>,
    /// The same as `sandbox`.
    vm_name: Option<String>,
    /// Inside: absolute, or relative to the home directory.
    path: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Encoding {
    #[default]
    Text,
    Base64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FilePart {
    path: String,
    content: String,
    next_offset: u64,
    more: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Written {
    path: String,
    size_bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Downloaded {
    path: String,
    size_bytes: u64,
    encoding: Encoding,
    content: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Entry {
    path: String,
    r#type: String,
    size_bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listing {
    entries: Vec<Entry>,
    left_out: usize,
}

#[tool_router(router = file_tools, vis = "pub(crate)")]
impl Server {
    /// Reads a text file, or a part of one from an offset on.
    /// Not for binary files (download_file).
    /// Example: {"sandbox":"web","path":"app/main.py"}
    #[tool(
        output_schema = schema_for_output::<FilePart>(),
        annotations(read_only_hint = true)
    )]
    async fn read_file(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<ReadFile>,
    ) -> Answer<FilePart> {
        let most = arguments.max_bytes.unwrap_or(READ_BYTES);
        if !(1..=MAX_READ_BYTES).contains(&most) {
            let message = format!("`max_bytes` is {most}: give 1 to {MAX_READ_BYTES}");
            return Err(Failure::arguments(message));
        }
        let user = arguments.user.as_deref();
        let (mut bytes, more) = part(
            &call,
            (&arguments.sandbox, &arguments.path, user),
            arguments.offset,
            most,
        )
        .await?;
        if more {
            bytes.truncate(whole_characters(&bytes).max(1));
        }
        let next_offset = arguments.offset + bytes.len() as u64;
        let content = text(bytes).map_err(|_| {
            Failure::new(
                "not_text",
                format!("`{}` is not UTF-8 text there", arguments.path),
            )
            .hint("download_file gives base64")
        })?;
        let end = if more { "there is more" } else { "the end" };
        let text = format!(
            "next_offset {next_offset}, {end}{}{}",
            Fence::new().before("content"),
            clean(&content)
        );
        let part = FilePart {
            path: arguments.path,
            content,
            next_offset,
            more,
        };
        Ok(Done::new(text, part))
    }

    /// Writes a text file, replacing what was there.
    /// Not for binary contents (upload_file).
    /// Example: {"sandbox":"web","path":"app/main.py","content":"print(6*7)\n"}
    #[tool(
        output_schema = schema_for_output::<Written>(),
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true)
    )]
    async fn write_file(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<WriteFile>,
    ) -> Answer<Written> {
        let to = (
            &*arguments.sandbox,
            &*arguments.path,
            arguments.user.as_deref(),
        );
        write(&call, to, Bytes::from(arguments.content)).await
    }

    /// Lists a directory, at most 500 entries.
    /// Not for finding text (run_command with grep or find).
    /// Example: {"sandbox":"web","path":"app","depth":2}
    #[tool(
        output_schema = schema_for_output::<Listing>(),
        annotations(read_only_hint = true)
    )]
    async fn list_files(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<ListFiles>,
    ) -> Answer<Listing> {
        let depth = arguments.depth.unwrap_or(1);
        if !(1..=MAX_DEPTH).contains(&depth) {
            let message = format!("`depth` is {depth}: give 1 to {MAX_DEPTH}");
            return Err(Failure::arguments(message));
        }
        let path = arguments.path.as_deref().unwrap_or(".");
        let found = call
            .client
            .list_files(&arguments.sandbox, path, depth)
            .await?;
        let left_out = found.len().saturating_sub(ENTRIES);
        let entries = found.into_iter().take(ENTRIES).map(|file| Entry {
            path: clean(&file.path).replace('\n', "?"),
            r#type: kind(file.kind).to_owned(),
            size_bytes: file.size_bytes,
        });
        let listing = Listing {
            entries: entries.collect(),
            left_out,
        };
        let rows = listing.entries.iter().map(|entry| match &*entry.r#type {
            "directory" => format!("{}/", entry.path),
            _ => format!("{} ({} bytes)", entry.path, entry.size_bytes),
        });
        let mut text = format!("entries: {}", listing.entries.len());
        if left_out > 0 {
            text.push_str(&format!(", {left_out} left out: list a directory below"));
        }
        // Names are a guest's words like any other.
        text.push_str(&Fence::new().before("entries"));
        text.push_str(&lines(rows, "empty"));
        Ok(Done::new(text, listing))
    }

    /// Puts a file of at most 2 MiB into a sandbox, text or base64, replacing what was there.
    /// Not for larger ones: have the sandbox fetch them with run_command.
    /// Example: {"sandbox":"web","path":"logo.png","content":"iVBORw0KGgo=","encoding":"base64"}
    #[tool(
        output_schema = schema_for_output::<Written>(),
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = true)
    )]
    async fn upload_file(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<UploadFile>,
    ) -> Answer<Written> {
        let sandbox = arguments::sandbox(arguments.sandbox, arguments.vm_name)?;
        let content = match arguments.encoding {
            Encoding::Text => Bytes::from(arguments.content),
            Encoding::Base64 => {
                Bytes::from(BASE64.decode(&arguments.content).map_err(|error| {
                    Failure::arguments(format!("`content` is not base64: {error}"))
                })?)
            }
        };
        write(&call, (&sandbox, &arguments.path, None), content).await
    }

    /// Gets a whole file of at most 256 KiB, as text or, if it is not UTF-8, as base64.
    /// Not for larger ones (read_file in parts, or serve it and expose_port).
    /// Example: {"sandbox":"web","path":"out/plot.png"}
    #[tool(
        output_schema = schema_for_output::<Downloaded>(),
        annotations(read_only_hint = true)
    )]
    async fn download_file(
        &self,
        Extension(call): Extension<Call>,
        Parameters(arguments): Parameters<DownloadFile>,
    ) -> Answer<Downloaded> {
        let sandbox = arguments::sandbox(arguments.sandbox, arguments.vm_name)?;
        let path = arguments.path;
        let (bytes, more) = part(&call, (&sandbox, &path, None), 0, MAX_READ_BYTES).await?;
        if more {
            let message = format!("`{path}` is larger than {MAX_READ_BYTES} bytes");
            return Err(Failure::new("too_large", message)
                .hint("read_file reads a part; or pack, split or serve it with run_command"));
        }
        let size_bytes = bytes.len() as u64;
        let (encoding, content) = match text(bytes) {
            Ok(text) => (Encoding::Text, text),
            Err(bytes) => (Encoding::Base64, BASE64.encode(bytes)),
        };
        let text = match encoding {
            Encoding::Text => format!(
                "{size_bytes} bytes of text{}{}",
                Fence::new().before("content"),
                clean(&content)
            ),
            Encoding::Base64 => format!("{size_bytes} bytes in base64\n{content}"),
        };
        let file = Downloaded {
            path,
            size_bytes,
            encoding,
            content,
        };
        Ok(Done::new(text, file))
    }
}

/// Text, or the bytes again. What holds a NUL is not text that anybody wrote, and in JSON
/// each takes six bytes.
fn text(bytes: Vec<u8>) -> Result<String, Vec<u8>> {
    if bytes.contains(&0) {
        return Err(bytes);
    }
    String::from_utf8(bytes).map_err(|error| error.into_bytes())
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Other => "other",
    }
}

/// At most `most` bytes after `offset`, and whether there are more.
async fn part(
    call: &Call,
    (sandbox, path, user): (&str, &str, Option<&str>),
    offset: u64,
    most: u64,
) -> Result<(Vec<u8>, bool), Failure> {
    let mut stream = std::pin::pin!(call.client.read_file(sandbox, path, user).await?);
    let (mut kept, mut to_skip) = (Vec::new(), offset);
    while let Some(chunk) = stream.try_next().await? {
        let skipped = to_skip.min(chunk.len() as u64);
        to_skip -= skipped;
        let rest = chunk
            .iter()
            .skip(usize::try_from(skipped).unwrap_or(usize::MAX));
        kept.extend(rest);
        if kept.len() as u64 > most {
            kept.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            return Ok((kept, true));
        }
    }
    Ok((kept, false))
}

async fn write(
    call: &Call,
    (sandbox, path, user): (&str, &str, Option<&str>),
    content: Bytes,
) -> Answer<Written> {
    if content.len() > MAX_WRITE_BYTES {
        let message = format!(
            "the contents have {} bytes, the most is {MAX_WRITE_BYTES}",
            content.len()
        );
        return Err(Failure::new("too_large", message)
            .hint("have the sandbox fetch it, or write it in parts with run_command and stdin"));
    }
    let size_bytes = content.len() as u64;
    let source = FileSource::bytes(content);
    call.client.write_file(sandbox, path, user, source).await?;
    let path = path.to_owned();
    let text = format!("wrote {size_bytes} bytes to {path}");
    Ok(Done::new(text, Written { path, size_bytes }))
}
