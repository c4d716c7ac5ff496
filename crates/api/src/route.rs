//! The one list of the native API's routes.
//!
//! `http` builds its router from it (an operation without a handler does not
//! compile), the OpenAPI document is generated from it, and the dispatcher's
//! test checks it against the other doors.

use crate::openapi::SchemaOf;
use crate::{
    BakeRequest, ChangeRequest, ChangeSandboxRequest, ConsoleLog, CreateSandboxRequest, DiskUsage,
    EventList, ExecRequest, ExecResponse, FileInfo, FileList, ForkRequest, Forked, MakeDirRequest,
    MoveRequest, Network, OpenPortRequest, Port, PortList, ProcessList, RollbackRequest,
    RolledBack, Sandbox, SandboxList, Snapshot, SnapshotList, Status, TakeSnapshotRequest,
    Template, TemplateList, Tree, WarmRequest, stream,
};

/// What a caller can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is described by its row's summary")]
pub enum Operation {
    CreateSandbox,
    ListSandboxes,
    GetSandbox,
    ChangeSandbox,
    RemoveSandbox,
    Network,
    StopSandbox,
    StartSandbox,
    PauseSandbox,
    ResumeSandbox,
    TakeSnapshot,
    ForkSandbox,
    RollBackSandbox,
    Exec,
    ExecStream,
    ListProcesses,
    Ping,
    ConsoleLog,
    ReadFile,
    WriteFile,
    UploadFile,
    RemoveFile,
    StatFile,
    ListFiles,
    MakeDir,
    MoveFile,
    ListPorts,
    OpenPort,
    ClosePort,
    ListSnapshots,
    GetSnapshot,
    RemoveSnapshot,
    Tree,
    DiskUsage,
    ListEvents,
    ListTemplates,
    WarmTemplate,
    BakeTemplate,
    ChangeTemplate,
    RemoveTemplate,
    Status,
    Health,
    Metrics,
    OpenApiJson,
    OpenApiYaml,
    ArrakisOpenApiJson,
    ArrakisOpenApiYaml,
}

/// An HTTP method that the API uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each says its own name")]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// The method's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// A parameter in the query.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Its name.
    pub name: &'static str,
    /// Whether the request is refused without it.
    pub required: bool,
    /// What its value is.
    pub kind: QueryKind,
    /// What it does.
    pub meaning: &'static str,
}

/// What a parameter in the query holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// Text.
    Text,
    /// A whole number.
    Number,
    /// Text, each time that it is given.
    Texts,
}

/// The body of a request.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// None.
    Empty,
    /// JSON of this shape.
    Json(SchemaOf),
    /// The bytes of a file, of any length.
    Bytes,
}

/// The answer when all went well.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// JSON of this shape, with this status.
    Json(u16, SchemaOf),
    /// 204 and nothing.
    NoContent,
    /// The bytes of a file.
    Bytes,
    /// Text of this media type.
    Text(&'static str),
    /// 101: a WebSocket; see [`crate::stream`].
    WebSocket,
}

/// A row of [`ROUTES`].
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// What it does.
    pub operation: Operation,
    /// Its method.
    pub method: Method,
    /// Its path, parameters in braces.
    pub path: &'static str,
    /// One line for the documentation.
    pub summary: &'static str,
    /// What the query may hold.
    pub query: &'static [Query],
    /// What the request's body holds.
    pub body: Body,
    /// What is answered.
    pub answer: Answer,
}

impl Route {
    /// Whether an API key is asked for.
    pub fn needs_key(&self) -> bool {
        self.operation != Operation::Health
    }
}

/// The row of an operation.
pub fn route_of(operation: Operation) -> &'static Route {
    let found = ROUTES.iter().find(|route| route.operation == operation);
    // `every_operation_has_one_row` proves it.
    found.unwrap_or(&ROUTES[0])
}

const PATH: Query = Query {
    name: "path",
    required: true,
    kind: QueryKind::Text,
    meaning: "Absolute, or relative to the user's home.",
};
const USER: Query = Query {
    name: "user",
    required: false,
    kind: QueryKind::Text,
    meaning: "The account it is done as; `user` when left out.",
};
const DEPTH: Query = Query {
    name: "depth",
    required: false,
    kind: QueryKind::Number,
    meaning: "How many levels to list; 1 when left out.",
};
const AFTER: Query = Query {
    name: "after",
    required: false,
    kind: QueryKind::Number,
    meaning: "Only events with a higher sequence number.",
};
const LIMIT: Query = Query {
    name: "limit",
    required: false,
    kind: QueryKind::Number,
    meaning: "At most this many; 100 when left out, 1000 at most.",
};
const FOLLOW: Query = Query {
    name: "follow",
    required: false,
    kind: QueryKind::Text,
    meaning: "`true`: server-sent events, as with `Accept: text/event-stream`; they go on as things happen.",
};
const OF_SANDBOX: Query = Query {
    name: "sandbox",
    required: false,
    kind: QueryKind::Text,
    meaning: "Only events of this sandbox: its id, or the name of one that is there.",
};
const OF_KIND: Query = Query {
    name: "kind",
    required: false,
    kind: QueryKind::Text,
    meaning: "Only events whose kind begins like this, such as `sandbox.`.",
};

const USAGE: Query = Query {
    name: "usage",
    required: false,
    kind: QueryKind::Text,
    meaning: "`true`: with what each costs its host.",
};

const LABEL: Query = Query {
    name: "label",
    required: false,
    kind: QueryKind::Texts,
    meaning: "`NAME=VALUE`: only snapshots with this label; repeat it for more, all must fit.",
};

/// A row in one line.
const fn row(
    operation: Operation,
    (method, path): (Method, &'static str),
    query: &'static [Query],
    body: Body,
    answer: Answer,
    summary: &'static str,
) -> Route {
    Route {
        operation,
        method,
        path,
        summary,
        query,
        body,
        answer,
    }
}

/// JSON in a request.
const fn takes<T: utoipa::ToSchema>() -> Body {
    Body::Json(SchemaOf::of::<T>())
}

/// JSON in an answer.
const fn gives<T: utoipa::ToSchema>(status: u16) -> Answer {
    Answer::Json(status, SchemaOf::of::<T>())
}

/// Every route of the native API.
#[rustfmt::skip]
pub const ROUTES: &[Route] = {
    use Answer::{Bytes, NoContent, Text, WebSocket};
    use Body::Empty;
    use Method::{Delete, Get, Patch, Post, Put};
    use Operation as O;
    &[
        row(O::CreateSandbox, (Post, "/v1/sandboxes"), &[], takes::<CreateSandboxRequest>(), gives::<Sandbox>(201), "Make a sandbox; answers when it is ready."),
        row(O::ListSandboxes, (Get, "/v1/sandboxes"), &[USAGE], Empty, gives::<SandboxList>(200), "List your sandboxes."),
        row(O::GetSandbox, (Get, "/v1/sandboxes/{id}"), &[], Empty, gives::<Sandbox>(200), "Describe a sandbox."),
        row(O::ChangeSandbox, (Patch, "/v1/sandboxes/{id}"), &[], takes::<ChangeSandboxRequest>(), gives::<Sandbox>(200), "Change what a sandbox may reach, and how long it is there."),
        row(O::Network, (Get, "/v1/sandboxes/{id}/network"), &[], Empty, gives::<Network>(200), "What a sandbox may reach, is connected with and was refused."),
        row(O::RemoveSandbox, (Delete, "/v1/sandboxes/{id}"), &[], Empty, NoContent, "Remove a sandbox and its disk."),
        row(O::StopSandbox, (Post, "/v1/sandboxes/{id}/stop"), &[], Empty, gives::<Sandbox>(200), "Power a sandbox off; its disk is kept."),
        row(O::StartSandbox, (Post, "/v1/sandboxes/{id}/start"), &[], Empty, gives::<Sandbox>(200), "Start a stopped sandbox on its disk."),
        row(O::PauseSandbox, (Post, "/v1/sandboxes/{id}/pause"), &[], Empty, gives::<Sandbox>(200), "Put a running sandbox on disk, memory included; it then costs neither memory nor CPU time."),
        row(O::ResumeSandbox, (Post, "/v1/sandboxes/{id}/resume"), &[], Empty, gives::<Sandbox>(200), "Let a paused sandbox go on; one that runs is left as it is."),
        row(O::TakeSnapshot, (Post, "/v1/sandboxes/{id}/snapshots"), &[], takes::<TakeSnapshotRequest>(), gives::<Snapshot>(201), "Keep a sandbox's present state; answers when that survives a power cut."),
        row(O::ForkSandbox, (Post, "/v1/sandboxes/{id}/fork"), &[], takes::<ForkRequest>(), gives::<Forked>(201), "Make running children of a running sandbox."),
        row(O::RollBackSandbox, (Post, "/v1/sandboxes/{id}/rollback"), &[], takes::<RollbackRequest>(), gives::<RolledBack>(200), "Put a sandbox back into a kept state, under its id."),
        row(O::Exec, (Post, "/v1/sandboxes/{id}/exec"), &[], takes::<ExecRequest>(), gives::<ExecResponse>(200), "Run a program to its end."),
        row(O::ExecStream, (Get, "/v1/sandboxes/{id}/exec/stream"), &[], Empty, WebSocket, "Run a program, or attach to one, with its input and output streamed."),
        row(O::ListProcesses, (Get, "/v1/sandboxes/{id}/processes"), &[], Empty, gives::<ProcessList>(200), "List the processes that can be attached to."),
        row(O::Ping, (Post, "/v1/sandboxes/{id}/ping"), &[], Empty, NoContent, "Go to the sandbox's agent and back."),
        row(O::ConsoleLog, (Get, "/v1/sandboxes/{id}/logs"), &[], Empty, gives::<ConsoleLog>(200), "The last lines of the sandbox's serial console."),
        row(O::ReadFile, (Get, "/v1/sandboxes/{id}/files"), &[PATH, USER], Empty, Bytes, "Read a file."),
        row(O::WriteFile, (Put, "/v1/sandboxes/{id}/files"), &[PATH, USER], Body::Bytes, gives::<FileInfo>(200), "Write a file; makes missing parents."),
        row(O::UploadFile, (Post, "/v1/sandboxes/{id}/files"), &[PATH, USER], Body::Bytes, gives::<FileInfo>(200), "The same as `PUT`."),
        row(O::RemoveFile, (Delete, "/v1/sandboxes/{id}/files"), &[PATH, USER], Empty, NoContent, "Remove a file, or a directory with all in it."),
        row(O::StatFile, (Get, "/v1/sandboxes/{id}/files/stat"), &[PATH, USER], Empty, gives::<FileInfo>(200), "Describe a file or a directory."),
        row(O::ListFiles, (Get, "/v1/sandboxes/{id}/files/list"), &[PATH, USER, DEPTH], Empty, gives::<FileList>(200), "List a directory."),
        row(O::MakeDir, (Post, "/v1/sandboxes/{id}/files/mkdir"), &[], takes::<MakeDirRequest>(), gives::<FileInfo>(201), "Make a directory and its missing parents."),
        row(O::MoveFile, (Post, "/v1/sandboxes/{id}/files/move"), &[], takes::<MoveRequest>(), gives::<FileInfo>(200), "Move or rename a file or a directory."),
        row(O::ListPorts, (Get, "/v1/sandboxes/{ref}/ports"), &[], Empty, gives::<PortList>(200), "What listens inside, and what else was said of its ports."),
        row(O::OpenPort, (Post, "/v1/sandboxes/{ref}/ports"), &[], takes::<OpenPortRequest>(), gives::<Port>(200), "Let a port of the host lead to one of the sandbox's, or say who may use it."),
        row(O::ClosePort, (Delete, "/v1/sandboxes/{ref}/ports/{port}"), &[], Empty, NoContent, "Take back what was said of a port."),
        row(O::ListSnapshots, (Get, "/v1/snapshots"), &[LABEL], Empty, gives::<SnapshotList>(200), "List your snapshots."),
        row(O::GetSnapshot, (Get, "/v1/snapshots/{ref}"), &[], Empty, gives::<Snapshot>(200), "Describe a snapshot."),
        row(O::RemoveSnapshot, (Delete, "/v1/snapshots/{ref}"), &[], Empty, NoContent, "Remove a snapshot; what came from it is kept."),
        row(O::Tree, (Get, "/v1/tree"), &[], Empty, gives::<Tree>(200), "Your snapshots and sandboxes, as they came from one another."),
        row(O::DiskUsage, (Get, "/v1/df"), &[], Empty, gives::<DiskUsage>(200), "Where disk space has gone."),
        row(O::ListEvents, (Get, "/v1/events"), &[AFTER, LIMIT, FOLLOW, OF_SANDBOX, OF_KIND], Empty, gives::<EventList>(200), "Read the journal, or follow it as server-sent events."),
        row(O::ListTemplates, (Get, "/v1/templates"), &[], Empty, gives::<TemplateList>(200), "List the templates."),
        row(O::WarmTemplate, (Post, "/v1/templates/{name}/warm"), &[], takes::<WarmRequest>(), NoContent, "Bake a template at a size ahead of its first use."),
        row(O::ChangeTemplate, (Patch, "/v1/templates/{name}"), &[], takes::<ChangeRequest>(), gives::<Template>(200), "Change what a template's future sandboxes may reach."),
        row(O::RemoveTemplate, (Delete, "/v1/templates/{name}"), &[], Empty, NoContent, "Remove a template; sandboxes made from it are kept."),
        row(O::BakeTemplate, (Post, "/v1/templates/{name}/bake"), &[], takes::<BakeRequest>(), gives::<Template>(200), "Make a template: its root file system and the snapshots that sandboxes start from."),
        row(O::Status, (Get, "/v1/status"), &[], Empty, gives::<Status>(200), "What the daemon says of itself."),
        row(O::Health, (Get, "/healthz"), &[], Empty, Text("text/plain"), "Whether the daemon answers; needs no key."),
        row(O::Metrics, (Get, "/metrics"), &[], Empty, Text("text/plain"), "Counters for Prometheus."),
        row(O::OpenApiJson, (Get, "/openapi.json"), &[], Empty, Text("application/json"), "This document."),
        row(O::OpenApiYaml, (Get, "/openapi.yaml"), &[], Empty, Text("application/yaml"), "This document as YAML."),
        row(O::ArrakisOpenApiJson, (Get, "/openapi/arrakis.json"), &[], Empty, Text("application/json"), "The API of Arrakis as such a document."),
        row(O::ArrakisOpenApiYaml, (Get, "/openapi/arrakis.yaml"), &[], Empty, Text("application/yaml"), "That document as YAML."),
    ]
};

/// Schemas of the WebSocket's messages, which no route's body names.
pub(crate) const STREAM_SCHEMAS: &[SchemaOf] = &[
    SchemaOf::of::<stream::StreamRequest>(),
    SchemaOf::of::<stream::ClientMessage>(),
    SchemaOf::of::<stream::ServerMessage>(),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::fmt::Write as _;
    use std::path::{Path, PathBuf};

    fn documentation(file: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs")
            .join(file)
    }

    /// The file is as expected, or is made so when asked to.
    fn check_document(file: &str, expected: impl Fn(&str) -> String) {
        let path = documentation(file);
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let expected = expected(&found);
        if std::env::var_os("PANDO_BLESS").is_some() {
            std::fs::write(&path, &expected).unwrap();
        } else {
            assert!(
                found == expected,
                "docs/{file} is stale: run `PANDO_BLESS=1 cargo test -p pando-api`"
            );
        }
    }

    #[test]
    fn the_documentation_lists_the_routes() {
        let mut table = String::from("\n| method | path | |\n|---|---|---|\n");
        for route in ROUTES {
            let _ = writeln!(
                table,
                "| {} | `{}` | {} |",
                route.method.as_str(),
                route.path,
                route.summary
            );
        }
        check_document("api.md", |found| {
            let (before, rest) = found
                .split_once("<!-- routes:")
                .expect("docs/api.md has a place for the routes");
            let (note, rest) = rest.split_once("-->").expect("the note ends");
            let (_, after) = rest
                .split_once("<!-- end of routes -->")
                .expect("the place ends");
            format!("{before}<!-- routes:{note}-->\n{table}\n<!-- end of routes -->{after}")
        });
    }

    #[test]
    fn the_committed_openapi_document_is_the_served_one() {
        use crate::openapi::{document, json};
        check_document("openapi.json", |_| json(&document()).unwrap());
    }

    #[test]
    fn every_operation_has_one_row() {
        let operations: HashSet<_> = ROUTES.iter().map(|route| route.operation).collect();
        assert_eq!(operations.len(), ROUTES.len());
        // The enum has no other variants: its last one's number says how many there are.
        assert_eq!(Operation::ArrakisOpenApiYaml as usize + 1, ROUTES.len());
        assert_eq!(route_of(Operation::Status).path, "/v1/status");
    }

    #[test]
    fn no_two_rows_share_method_and_path() {
        let places: HashSet<_> = ROUTES
            .iter()
            .map(|route| (route.method, route.path))
            .collect();
        assert_eq!(places.len(), ROUTES.len());
    }
}
