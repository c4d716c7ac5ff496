//! HTTP underneath the client: addresses, headers, bodies, errors.

use crate::ClientError;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::uri::{Authority, Scheme};
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use pando_api::ErrorResponse;
use pando_api::route::{Operation, route_of};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Connecting to a daemon on this machine takes microseconds, across the world a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest JSON answer: a listing of a large directory is the longest.
const ANSWER_BYTES: usize = 64 << 20;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The body of a request.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// A daemon's address and the way to it.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    http: HttpClient<HttpConnector, RequestBody>,
    pub(crate) url: String,
    pub(crate) authority: Authority,
    pub(crate) key: Option<HeaderValue>,
}

/// A request: an operation with its parameters filled in.
pub(crate) struct Call<'a> {
    /// Which.
    pub(crate) operation: Operation,
    /// The value of the path's first parameter, where there is one.
    pub(crate) target: &'a str,
    /// The value of its second.
    pub(crate) second: &'a str,
    /// The query.
    pub(crate) query: &'a [(&'a str, &'a str)],
}

impl Call<'_> {
    /// The path and query, encoded.
    pub(crate) fn path(&self) -> String {
        let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let parts = route_of(self.operation).path.split('/');
        let mut values = [self.target, self.second].into_iter();
        let filled = parts.map(|part| {
            if part.starts_with('{') {
                encode(values.next().unwrap_or_default())
            } else {
                part.to_owned()
            }
        });
        let mut path = filled.collect::<Vec<_>>().join("/");
        for (index, (name, value)) in self.query.iter().enumerate() {
            path.push(if index == 0 { '?' } else { '&' });
            path.push_str(&format!("{name}={}", encode(value)));
        }
        path
    }
}

impl Transport {
    pub(crate) fn new(url: &str, key: Option<&str>) -> Result<Self, ClientError> {
        let authority = authority(url).map_err(|reason| ClientError::BadUrl {
            url: url.to_owned(),
            reason,
        })?;
        let key = match key {
            Some(key) => {
                let mut value = HeaderValue::from_str(key).map_err(|_| ClientError::BadKey)?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let http = HttpClient::builder(TokioExecutor::new()).build(connector);
        Ok(Self {
            http,
            url: url.to_owned(),
            authority,
            key,
        })
    }

    /// Sends a request; an answer with a status of 400 and above is an error.
    pub(crate) async fn send(
        &self,
        call: &Call<'_>,
        body: RequestBody,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Response<Incoming>, ClientError> {
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(call.path())
            .build()
            .map_err(|error| ClientError::Nonsense(error.to_string()))?;
        let mut request = Request::new(body);
        *request.uri_mut() = uri;
        *request.method_mut() = method(route_of(call.operation).method);
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static("*/*"));
        request.headers_mut().extend(headers.iter().cloned());
        if let Some(key) = &self.key {
            request.headers_mut().insert(API_KEY, key.clone());
        }
        let response = self
            .http
            .request(request)
            .await
            .map_err(|error| self.failed(&error))?;
        if response.status().as_u16() < 400 {
            return Ok(response);
        }
        let status = response.status();
        let again = response.headers().get(RETRY_AFTER);
        let again = again.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let body = collect(response).await.unwrap_or_default();
        Err(refusal(status.as_u16(), &body).after(again))
    }

    /// Sends JSON, or nothing, and reads JSON.
    pub(crate) async fn json<Q: Serialize, A: DeserializeOwned>(
        &self,
        call: &Call<'_>,
        body: Option<&Q>,
    ) -> Result<A, ClientError> {
        let response = self.send_json(call, body).await?;
        let bytes = collect(response).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Nonsense(error.to_string()))
    }

    /// Sends JSON, or nothing, and reads nothing.
    pub(crate) async fn send_json<Q: Serialize>(
        &self,
        call: &Call<'_>,
        body: Option<&Q>,
    ) -> Result<Response<Incoming>, ClientError> {
        let (bytes, headers) = match body {
            Some(body) => {
                let bytes = serde_json::to_vec(body)
                    .map_err(|error| ClientError::Nonsense(error.to_string()))?;
                (
                    Bytes::from(bytes),
                    vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
                )
            }
            None => (Bytes::new(), Vec::new()),
        };
        self.send(call, full(bytes), &headers).await
    }

    /// Why no answer came.
    fn failed(&self, error: &hyper_util::client::legacy::Error) -> ClientError {
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            reason = cause.to_string();
            source = cause.source();
        }
        if error.is_connect() {
            ClientError::NotReachable {
                url: self.url.clone(),
                reason,
            }
        } else {
            ClientError::Broken(reason)
        }
    }

    /// The headers of a WebSocket handshake beyond its own.
    pub(crate) fn handshake_headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let host = HeaderValue::from_str(self.authority.as_str())
            .ok()
            .map(|host| (HOST, host));
        host.into_iter()
            .chain(self.key.clone().map(|key| (API_KEY, key)))
            .collect()
    }
}

/// A body that is at hand.
pub(crate) fn full(bytes: Bytes) -> RequestBody {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// The header that says how long a body is.
pub(crate) fn content_length(length: u64) -> (HeaderName, HeaderValue) {
    (CONTENT_LENGTH, HeaderValue::from(length))
}

/// What a refusal says; the body may be missing or not ours.
pub(crate) fn refusal(status: u16, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<ErrorResponse>(body) {
        Ok(response) => ClientError::refused(status, response.error),
        Err(_) => ClientError::Nonsense(format!("status {status} without an explanation")),
    }
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    let whole = Limited::new(response.into_body(), ANSWER_BYTES)
        .collect()
        .await;
    Ok(whole
        .map_err(|error| ClientError::Broken(error.to_string()))?
        .to_bytes())
}

fn method(method: pando_api::route::Method) -> http::Method {
    match method {
        pando_api::route::Method::Get => http::Method::GET,
        pando_api::route::Method::Post => http::Method::POST,
        pando_api::route::Method::Put => http::Method::PUT,
        pando_api::route::Method::Patch => http::Method::PATCH,
        pando_api::route::Method::Delete => http::Method::DELETE,
    }
}

/// The host and port of a daemon's URL.
fn authority(url: &str) -> Result<Authority, &'static str> {
    let uri: Uri = url.parse().map_err(|_| "it is no URL")?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err("https is not supported, use a tunnel to the daemon's port"),
        _ => return Err("it does not begin with `http://`"),
    }
    if !matches!(
        uri.path_and_query().map(|path| path.as_str()),
        None | Some("/")
    ) {
        return Err("it may not have a path");
    }
    let authority = uri.into_parts().authority.ok_or("it has no host")?;
    if authority.as_str().contains('@') {
        return Err("it may not have a user");
    }
    Ok(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_encoded_into_the_path() {
        let query = [("path", "/a b/ü&c"), ("user", "root")];
        let call = Call {
            operation: Operation::ReadFile,
            target: "../x",
            second: "",
            query: &query,
        };
        assert_eq!(
            call.path(),
            "/v1/sandboxes/%2E%2E%2Fx/files?path=%2Fa%20b%2F%C3%BC%26c&user=root"
        );
    }

    #[test]
    fn addresses_that_cannot_work_say_why() {
        assert_eq!(
            authority("http://127.0.0.1:7000/").unwrap().as_str(),
            "127.0.0.1:7000"
        );
        assert_eq!(
            authority("http://[::1]:7000").unwrap().as_str(),
            "[::1]:7000"
        );
        for (url, reason) in [
            ("https://pando.example", "https"),
            ("127.0.0.1:7000", "http://"),
            ("http://host/api", "path"),
            ("http://me@host", "user"),
            ("", "URL"),
        ] {
            assert!(authority(url).unwrap_err().contains(reason), "{url}");
        }
    }

    #[test]
    fn a_refusal_keeps_code_and_hint() {
        let body = br#"{"error":{"code":"name_taken","message":"m","hint":"h","request_id":"r"}}"#;
        let error = refusal(409, body);
        assert_eq!(
            (error.code(), error.hint()),
            (Some("name_taken"), Some("h"))
        );
        assert!(matches!(refusal(502, b"<html>"), ClientError::Nonsense(_)));
    }
}
