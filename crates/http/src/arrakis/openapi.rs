//! This door's OpenAPI document: [`OPERATIONS`], which a test holds against the door's routes.

use super::shapes::{
    ChangeVm, Done, Download, Health, KeepVm, KeptVm, RanCommand, Refused, RunCommand, StartVm,
    Upload, Uploaded, Vm, VmList,
};
use pando_api::openapi::{API_KEY_HEADER, BEARER, SchemaOf, key_schemes};
use pando_api::route::Method;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
    ParameterStyle, PathsBuilder,
};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{ArrayBuilder, Schema, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Content, InfoBuilder, LicenseBuilder, ObjectBuilder, OpenApi,
    OpenApiBuilder, PathItem, Ref, RefOr, Required, Response, ResponseBuilder, SecurityRequirement,
};

/// What holds for all of it.
const DESCRIPTION: &str = "\
What clients of Arrakis ask of Pando, in their own words. A VM here is a sandbox of Pando's that has a name; \
`docs/arrakis.md` says what differs from Arrakis, `/openapi.json` describes Pando's own API.

Each path below `/v1` is served without `/v1` too, for clients before version 2, and answers there in the same way.

A request without a key is the tenant `arrakis`'s. It passes if it comes from a program of the daemon's machine, over a \
loopback address, for `localhost` or a loopback address; if the daemon listens on a loopback address only, has neither \
`public_url` nor `public_hosts`, and was not started with `--arrakis-auth`; and if it has no sign of a web page (`Origin`, \
`Sec-Fetch-Site`), of a proxy (`Forwarded`, `Via`, `X-Forwarded-…`, HTTP/1.0 and others), or of an account of sandboxes. \
All others need a key. A `POST` or `PATCH` without a key is declared as `application/json` even if it has no body.

Fields that are not described are ignored. Another path is a 404 with the text `404 page not found`, another method of a \
path a 405 without a body and with `Allow`.";

/// The third way to send a key, which Python's `requests` takes from `~/.netrc`.
const BASIC: &str = "basic";

/// What the name in a path is.
const NAME: &str = "The VM's name, all of it.";

/// What `paths` in a query is.
const PATHS: &str = "The files, between commas: absolute, or relative to `/tmp/server_files`. At least one, at most 1024. \
Each is percent-encoded; a comma in a name is `%2C`.";

/// A row of [`OPERATIONS`].
struct Row {
    id: &'static str,
    method: Method,
    path: &'static str,
    body: Option<SchemaOf>,
    answer: SchemaOf,
    /// Statuses of refusals beyond those that [`Row::refusals`] knows by itself.
    beyond: &'static [u16],
    summary: &'static str,
    description: &'static str,
}

const fn row(
    id: &'static str,
    (method, path): (Method, &'static str),
    body: Option<SchemaOf>,
    answer: SchemaOf,
    beyond: &'static [u16],
    (summary, description): (&'static str, &'static str),
) -> Row {
    Row {
        id,
        method,
        path,
        body,
        answer,
        beyond,
        summary,
        description,
    }
}

const fn takes<T: utoipa::ToSchema>() -> Option<SchemaOf> {
    Some(SchemaOf::of::<T>())
}

/// What can be asked below `/v1`.
#[rustfmt::skip]
const OPERATIONS: &[Row] = {
    use Method::{Delete, Get, Patch, Post};
    &[
        row("health", (Get, "/v1/health"), None, SchemaOf::of::<Health>(), &[],
            ("Whether the daemon answers.", "Who may ask is as everywhere here; `/healthz` needs no key of anybody.")),
        row("list_vms", (Get, "/v1/vms"), None, SchemaOf::of::<VmList>(), &[],
            ("List the VMs.", "All of the caller's that have a name.")),
        row("start_vm", (Post, "/v1/vms"), takes::<StartVm>(), SchemaOf::of::<Vm>(), &[404, 409, 422, 429, 502, 503, 507],
            ("Start a VM.", "A new one, one that is off or paused, or either from a snapshot; answers when it is ready. A new one \
              has 1 CPU, 512 MiB, and its ports of the host. A new one that fails leaves nothing.")),
        row("destroy_all_vms", (Delete, "/v1/vms"), None, SchemaOf::of::<Done>(), &[],
            ("Destroy all VMs.", "All of the caller's that have a name, with their disks. Snapshots are kept.")),
        row("get_vm", (Get, "/v1/vms/{name}"), None, SchemaOf::of::<Vm>(), &[],
            ("Describe a VM.", "Its state and its ports of the host.")),
        row("change_vm", (Patch, "/v1/vms/{name}"), takes::<ChangeVm>(), SchemaOf::of::<Done>(), &[409, 422, 429, 502, 503, 507],
            ("Stop, pause or resume a VM.", "One that is so already is left alone. One that is off is started by `POST /v1/vms`.")),
        row("destroy_vm", (Delete, "/v1/vms/{name}"), None, SchemaOf::of::<Done>(), &[],
            ("Destroy a VM.", "With its disk; its ports of the host are given back. Snapshots are kept.")),
        row("keep_vm", (Post, "/v1/vms/{name}/snapshots"), takes::<KeepVm>(), SchemaOf::of::<KeptVm>(), &[409, 429, 502, 503, 507],
            ("Keep a VM's state.", "Memory and disk, while it runs; answers when that survives a power cut.")),
        row("run_command", (Post, "/v1/vms/{name}/cmd"), takes::<RunCommand>(), SchemaOf::of::<RanCommand>(), &[409, 422, 429, 502, 503],
            ("Run a command.", "One that fails is no refusal: the status is 200 and `error` says how it ended.")),
        row("download_files", (Get, "/v1/vms/{name}/files"), None, SchemaOf::of::<Download>(), &[400, 409, 429, 502, 503],
            ("Read files.", "Together at most 64 MiB, each within 60 s. What cannot be read says so in its place, and the status is 200.")),
        row("upload_files", (Post, "/v1/vms/{name}/files"), takes::<Upload>(), SchemaOf::of::<Uploaded>(), &[409, 429, 502, 503, 507],
            ("Write files.", "As root, with the directories that are missing.")),
    ]
};

/// Refusals: status, the name of the response, what it says.
const REFUSALS: &[(u16, &str, &str)] = &[
    (
        400,
        "Invalid",
        "A value is missing or wrong, or the body is not the JSON that is expected.",
    ),
    (
        401,
        "Unauthorized",
        "A key is needed, or nobody holds the one that came. Has `WWW-Authenticate`.",
    ),
    (
        403,
        "Forbidden",
        "A page of another origin may not do this, or the file may not be written.",
    ),
    (
        404,
        "NotFound",
        "There is no such VM, snapshot or template, or it is another tenant's.",
    ),
    (
        409,
        "Conflict",
        "The VM's state does not allow it, the name is taken, the snapshot's memory does not fit, or the VM's state \
         changed meanwhile.",
    ),
    (413, "TooLarge", "The body has more than 12 MiB."),
    (
        415,
        "NotJson",
        "The body is not declared as `application/json`.",
    ),
    (
        421,
        "ForeignHost",
        "The daemon does not answer for the `Host` of the request. The error has all fields of Pando's own API.",
    ),
    (
        422,
        "Unusable",
        "The snapshot is damaged, or the command could not be started.",
    ),
    (
        429,
        "Quota",
        "One more would pass a limit of the tenant. Nothing was begun.",
    ),
    (500, "Fault", "A fault of Pando's."),
    (
        502,
        "VmGone",
        "The VM ended while it served the request, or its agent answered nonsense.",
    ),
    (
        503,
        "NotNow",
        "No memory, no turn or no port of the host is left, or the daemon ends.",
    ),
    (507, "NoSpace", "The disk of the host or of the VM is full."),
];

/// The response that stands for all other statuses.
const OTHER: &str = "Other";

/// The document.
pub(crate) fn document() -> OpenApi {
    let refused = SchemaOf::of::<Refused>();
    let mut schemas = Vec::new();
    let mut paths = PathsBuilder::new();
    refused.collect_into(&mut schemas);
    for row in OPERATIONS {
        for schema in row.body.into_iter().chain([row.answer]) {
            schema.collect_into(&mut schemas);
        }
        let item = PathItem::new(HttpMethod::from(row.method), row.operation());
        paths = paths.path(row.path, item);
    }
    let basic = Http::builder()
        .scheme(HttpAuthScheme::Basic)
        .description(Some("The key is the password; the name does not matter."));
    let mut components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(BASIC, SecurityScheme::Http(basic.build()));
    for (name, scheme) in key_schemes() {
        components = components.security_scheme(name, scheme);
    }
    for &(status, name, meaning) in REFUSALS {
        let mut response = refusal(meaning);
        if status == 503 {
            response = response.header("Retry-After", retry_after());
        }
        components = components.response(name, response.build());
    }
    let other = refusal("Refused or failed in another way.");
    components = components.response(OTHER, other.build());
    let info = InfoBuilder::new()
        .title("Arrakis's API on Pando")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").build()));
    let ways = [BEARER, API_KEY_HEADER, BASIC];
    let ways = ways.map(|way| SecurityRequirement::new(way, Vec::<String>::new()));
    // The empty one: without a key.
    let security = [SecurityRequirement::default()].into_iter().chain(ways);
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        .security(Some(security))
        .build()
}

fn refusal(meaning: &str) -> ResponseBuilder {
    let schema = SchemaOf::of::<Refused>().reference();
    ResponseBuilder::new()
        .description(meaning)
        .content("application/json", Content::new(Some(schema)))
}

fn retry_after() -> Header {
    let mut header = Header::new(plain(Type::Integer));
    let meaning = "After how many seconds the same request may succeed, where waiting helps.";
    header.description = Some(meaning.to_owned());
    header
}

fn plain(kind: Type) -> RefOr<Schema> {
    RefOr::T(Schema::Object(
        ObjectBuilder::new().schema_type(kind).build(),
    ))
}

impl Row {
    /// The statuses that it may be refused with.
    fn refusals(&self) -> Vec<u16> {
        // Whoever asks for whatever, and a fault.
        let mut all = vec![401, 415, 421, 500];
        all.extend_from_slice(self.beyond);
        if self.method != Method::Get {
            all.push(403);
        }
        if self.body.is_some() {
            all.extend([400, 413]);
        }
        if self.names_a_vm() {
            all.extend([400, 404]);
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    fn names_a_vm(&self) -> bool {
        self.path.contains("{name}")
    }

    fn operation(&self) -> Operation {
        let json = |schema: SchemaOf| Content::new(Some(schema.reference()));
        let answer = ResponseBuilder::new()
            .description("Done.")
            .content("application/json", json(self.answer));
        let mut operation = OperationBuilder::new()
            .operation_id(Some(self.id))
            .summary(Some(self.summary))
            .description(Some(self.description))
            .tag(if self.path == "/v1/health" {
                "server"
            } else {
                "vms"
            })
            .response("200", answer.build());
        let refusals = self.refusals();
        let listed = REFUSALS
            .iter()
            .filter(|(status, ..)| refusals.contains(status))
            .map(|(status, name, _)| (status.to_string(), *name));
        for (status, name) in listed.chain([("default".to_owned(), OTHER)]) {
            let reference = RefOr::<Response>::Ref(Ref::from_response_name(name));
            operation = operation.response(status, reference);
        }
        if self.names_a_vm() {
            operation = operation.parameter(parameter("name", ParameterIn::Path, NAME));
        }
        if self.id == "download_files" {
            operation = operation.parameter(parameter("paths", ParameterIn::Query, PATHS));
        }
        if let Some(body) = self.body {
            let mut request = RequestBody::new();
            request
                .content
                .insert("application/json".to_owned(), json(body));
            request.required = Some(Required::True);
            operation = operation.request_body(Some(request));
        }
        operation.build()
    }
}

/// A parameter: text in a path, several texts between commas in a query.
fn parameter(name: &str, place: ParameterIn, meaning: &str) -> Parameter {
    let parameter = ParameterBuilder::new()
        .name(name)
        .required(Required::True)
        .description(Some(meaning));
    let parameter = match place {
        ParameterIn::Query => {
            let texts = ArrayBuilder::new()
                .items(plain(Type::String))
                .min_items(Some(1));
            parameter
                .schema(Some(Schema::Array(texts.build())))
                .style(Some(ParameterStyle::Form))
                .explode(Some(false))
        }
        _ => parameter.schema(Some(plain(Type::String))),
    };
    parameter.parameter_in(place).build()
}

#[cfg(test)]
#[path = "openapi_tests.rs"]
mod tests;
