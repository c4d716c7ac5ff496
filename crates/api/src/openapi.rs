//! The OpenAPI document, generated from [`crate::route::ROUTES`], and what documents of other
//! doors are made with.

use crate::ErrorResponse;
use crate::route::{Answer, Body, Method, Query, QueryKind, ROUTES, Route, STREAM_SCHEMAS};
use std::borrow::Cow;
use std::fmt;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathsBuilder,
};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, Schema, SchemaFormat, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Content, InfoBuilder, LicenseBuilder, ObjectBuilder, OpenApi,
    OpenApiBuilder, PathItem, Ref, RefOr, Required, Response, ResponseBuilder, SecurityRequirement,
};
use utoipa::{PartialSchema, ToSchema};

/// Names of the two ways to send a key.
pub const BEARER: &str = "bearer";
/// The other one.
pub const API_KEY_HEADER: &str = "api_key";

/// A schema, and what others refer to it by.
pub type NamedSchema = (String, RefOr<Schema>);

/// A type's schema, to be put in a table: its name, and how to collect it and all it refers to.
#[derive(Clone, Copy)]
pub struct SchemaOf {
    name: fn() -> Cow<'static, str>,
    collect: fn(&mut Vec<NamedSchema>),
}

impl SchemaOf {
    /// Of this type.
    pub const fn of<T: ToSchema>() -> Self {
        Self {
            name: T::name,
            collect: collect::<T>,
        }
    }

    /// What stands for it where it is used.
    pub fn reference(self) -> RefOr<Schema> {
        RefOr::Ref(Ref::from_schema_name((self.name)()))
    }

    /// Adds it and all it refers to.
    pub fn collect_into(self, schemas: &mut Vec<NamedSchema>) {
        (self.collect)(schemas);
    }
}

impl fmt::Debug for SchemaOf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&(self.name)())
    }
}

fn collect<T: ToSchema>(schemas: &mut Vec<NamedSchema>) {
    schemas.push((T::name().into_owned(), <T as PartialSchema>::schema()));
    T::schemas(schemas);
}

/// A document could not be written as text.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the OpenAPI document: {0}")]
pub struct OpenApiError(String);

/// A document as JSON, indented, with a newline at its end.
///
/// # Errors
/// If a schema cannot be written as JSON, which is a fault of ours.
pub fn json(document: &OpenApi) -> Result<String, OpenApiError> {
    let text = document
        .to_pretty_json()
        .map_err(|error| OpenApiError(error.to_string()))?;
    Ok(text + "\n")
}

/// A document as YAML.
///
/// # Errors
/// As [`json`].
pub fn yaml(document: &OpenApi) -> Result<String, OpenApiError> {
    document
        .to_yaml()
        .map_err(|error| OpenApiError(error.to_string()))
}

/// The two ways to send a key.
pub fn key_schemes() -> [(&'static str, SecurityScheme); 2] {
    let own = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
    [
        (
            BEARER,
            SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
        ),
        (API_KEY_HEADER, SecurityScheme::ApiKey(own)),
    ]
}

/// The native door's document.
pub fn document() -> OpenApi {
    let mut schemas = Vec::new();
    SchemaOf::of::<ErrorResponse>().collect_into(&mut schemas);
    let mut paths = PathsBuilder::new();
    for route in ROUTES {
        for schema in [body_schema(route), answer_schema(route)]
            .into_iter()
            .flatten()
        {
            schema.collect_into(&mut schemas);
        }
        paths = paths.path(
            route.path,
            PathItem::new(HttpMethod::from(route.method), operation(route)),
        );
    }
    for schema in STREAM_SCHEMAS {
        schema.collect_into(&mut schemas);
    }
    let mut components = ComponentsBuilder::new().schemas_from_iter(schemas);
    for (name, scheme) in key_schemes() {
        components = components.security_scheme(name, scheme);
    }
    let info = InfoBuilder::new()
        .title("Pando")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Computers for AI agents to work in: microVMs behind one REST API.",
        ))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").build()));
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        .build()
}

fn body_schema(route: &Route) -> Option<SchemaOf> {
    match route.body {
        Body::Json(schema) => Some(schema),
        Body::Empty | Body::Bytes => None,
    }
}

fn answer_schema(route: &Route) -> Option<SchemaOf> {
    match route.answer {
        Answer::Json(_, schema) => Some(schema),
        Answer::NoContent | Answer::Bytes | Answer::Text(_) | Answer::WebSocket => None,
    }
}

impl From<Method> for HttpMethod {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::Get,
            Method::Post => Self::Post,
            Method::Put => Self::Put,
            Method::Patch => Self::Patch,
            Method::Delete => Self::Delete,
        }
    }
}

fn operation(route: &Route) -> Operation {
    let (status, answer) = answer(route.answer);
    let mut operation = OperationBuilder::new()
        .operation_id(Some(snake_case(&format!("{:?}", route.operation))))
        .summary(Some(route.summary))
        .tag(tag(route.path))
        .request_body(request_body(route.body))
        .response(status, answer)
        .response("default", refusal());
    for parameter in path_parameters(route.path).chain(route.query.iter().map(query_parameter)) {
        operation = operation.parameter(parameter);
    }
    if route.needs_key() {
        for scheme in [BEARER, API_KEY_HEADER] {
            operation = operation.security(SecurityRequirement::new(scheme, Vec::<String>::new()));
        }
    }
    operation.build()
}

fn request_body(body: Body) -> Option<RequestBody> {
    let (media_type, schema) = match body {
        Body::Empty => return None,
        Body::Json(schema) => ("application/json", schema.reference()),
        Body::Bytes => ("application/octet-stream", bytes_schema()),
    };
    let mut request_body = RequestBody::new();
    request_body
        .content
        .insert(media_type.to_owned(), Content::new(Some(schema)));
    request_body.required = Some(Required::True);
    Some(request_body)
}

fn answer(answer: Answer) -> (String, Response) {
    let (status, description, content) = match answer {
        Answer::Json(status, schema) => (
            status,
            "Done.",
            Some(("application/json", schema.reference())),
        ),
        Answer::NoContent => (204, "Done.", None),
        Answer::Bytes => (
            200,
            "The file.",
            Some(("application/octet-stream", bytes_schema())),
        ),
        Answer::Text(media_type) => (200, "Done.", Some((media_type, plain(Type::String)))),
        Answer::WebSocket => (101, "A WebSocket; `docs/api.md` has its messages.", None),
    };
    let mut response = ResponseBuilder::new().description(description);
    if let Some((media_type, schema)) = content {
        response = response.content(media_type, Content::new(Some(schema)));
    }
    (status.to_string(), response.build())
}

fn refusal() -> Response {
    let schema = SchemaOf::of::<ErrorResponse>().reference();
    ResponseBuilder::new()
        .description("Refused or failed; `docs/errors.md` has the codes.")
        .content("application/json", Content::new(Some(schema)))
        .build()
}

fn bytes_schema() -> RefOr<Schema> {
    let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
    RefOr::T(Schema::Object(
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(format))
            .build(),
    ))
}

fn path_parameters(path: &'static str) -> impl Iterator<Item = Parameter> {
    let names = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| {
        let meaning = match name {
            "id" => "The sandbox's id, a prefix of it that fits no other, or its name.",
            "ref" => "The snapshot's id, a prefix of it that fits no other, or its name.",
            _ => "The template: `name` or `name:tag`.",
        };
        parameter(name, ParameterIn::Path, true, plain(Type::String), meaning)
    })
}

fn query_parameter(query: &Query) -> Parameter {
    let schema = match query.kind {
        QueryKind::Text => plain(Type::String),
        QueryKind::Number => plain(Type::Integer),
        QueryKind::Texts => RefOr::T(Schema::Array(
            ArrayBuilder::new().items(plain(Type::String)).build(),
        )),
    };
    parameter(
        query.name,
        ParameterIn::Query,
        query.required,
        schema,
        query.meaning,
    )
}

fn plain(kind: Type) -> RefOr<Schema> {
    RefOr::T(Schema::Object(
        ObjectBuilder::new().schema_type(kind).build(),
    ))
}

fn parameter(
    name: &str,
    place: ParameterIn,
    required: bool,
    schema: RefOr<Schema>,
    meaning: &str,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(if required {
            Required::True
        } else {
            Required::False
        })
        .description(Some(meaning))
        .schema(Some(schema))
        .build()
}

/// The group a route is shown in: the first word after `/v1`.
fn tag(path: &str) -> &str {
    let inner = path.strip_prefix("/v1/").unwrap_or("server");
    inner.split('/').next().unwrap_or(inner)
}

fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for character in name.chars() {
        if character.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(character.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_holds_every_route_and_no_dangling_reference() {
        let text = json(&document()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for route in ROUTES {
            let operation = &value["paths"][route.path][route.method.as_str().to_lowercase()];
            assert_eq!(operation["summary"], route.summary, "{route:?}");
        }
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(
                value["components"]["schemas"][name].is_object(),
                "{name} is referred to and missing"
            );
        }
        assert!(value["paths"]["/healthz"]["get"]["security"].is_null());
        assert!(value["paths"]["/metrics"]["get"]["security"].is_array());
        assert!(yaml(&document()).unwrap().starts_with("openapi: 3."));
    }
}
