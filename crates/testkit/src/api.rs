//! Raw REST requests, with nothing of Pando's own client in between.

use serde_json::Value;
use std::time::Duration;

/// Far above what any one request takes, so that a hang is a failed test.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A REST endpoint.
pub struct Api {
    url: String,
    key: Option<String>,
    agent: ureq::Agent,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body's bytes.
    pub body: Vec<u8>,
    /// The body as text.
    pub text: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }
}

impl Answer {
    /// Status and body of a refusal, without the request's id, which must be the header's.
    pub fn refusal(&self) -> String {
        let mut body: Value =
            serde_json::from_str(&self.text).unwrap_or_else(|_| Value::String(self.text.clone()));
        if let Some(error) = body.get_mut("error").and_then(Value::as_object_mut) {
            let request_id = error.remove("request_id").unwrap_or_default();
            assert_eq!(
                self.header("x-request-id"),
                request_id.as_str(),
                "{}",
                self.text
            );
        }
        format!("{} {body}", self.status)
    }
}

impl Api {
    /// An endpoint with a key, or without.
    pub fn new(url: String, key: Option<String>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .build();
        Self {
            url,
            key,
            agent: config.into(),
        }
    }

    /// `GET path`.
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    /// `DELETE path`.
    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], b"")
    }

    /// `POST path` with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(
            "POST",
            path,
            &[("content-type", "application/json")],
            body.to_string().as_bytes(),
        )
    }

    /// Takes a snapshot of a sandbox.
    pub fn snapshot(&self, sandbox: &str, request: &Value) -> Answer {
        self.post(&format!("/v1/sandboxes/{sandbox}/snapshots"), request)
    }

    /// Makes children of a sandbox.
    pub fn fork(&self, sandbox: &str, request: &Value) -> Answer {
        self.post(&format!("/v1/sandboxes/{sandbox}/fork"), request)
    }

    /// Puts a sandbox back into a kept state.
    pub fn roll_back(&self, sandbox: &str, request: &Value) -> Answer {
        self.post(&format!("/v1/sandboxes/{sandbox}/rollback"), request)
    }

    /// Puts a sandbox on disk.
    pub fn pause(&self, sandbox: &str) -> Answer {
        self.send("POST", &format!("/v1/sandboxes/{sandbox}/pause"), &[], b"")
    }

    /// Lets a paused sandbox go on.
    pub fn resume(&self, sandbox: &str) -> Answer {
        self.send("POST", &format!("/v1/sandboxes/{sandbox}/resume"), &[], b"")
    }

    /// `PUT path` with raw bytes.
    pub fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.send(
            "PUT",
            path,
            &[("content-type", "application/octet-stream")],
            body,
        )
    }

    /// `GET path`, whose body is left to be read bit by bit.
    pub fn open(&self, path: &str) -> impl std::io::Read + Send + use<> {
        self.open_with(path, &[])
    }

    /// The same with headers.
    pub fn open_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> impl std::io::Read + Send + use<> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request
            .call()
            .unwrap_or_else(|error| panic!("GET {path}: {error}"));
        assert_eq!(response.status().as_u16(), 200, "GET {path}");
        response.into_body().into_reader()
    }

    /// Any request, which must be answered.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_send(method, path, headers, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// A `POST` with a JSON body, or without; the daemon may die of it.
    ///
    /// # Errors
    /// There was no whole answer.
    pub fn try_post(&self, path: &str, body: Option<&Value>) -> Result<Answer, String> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let headers = body.map(|_| ("content-type", "application/json"));
        self.try_send("POST", path, headers.as_slice(), text.as_bytes())
    }

    fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, String> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.to_vec()).expect("a well-formed request");
        let request = self
            .agent
            .configure_request(request)
            .allow_non_standard_methods(true)
            .build();
        let mut response = self.agent.run(request).map_err(|error| error.to_string())?;
        let body = response.body_mut().with_config().limit(1 << 31);
        let body = body.read_to_vec().map_err(|error| error.to_string())?;
        Ok(Answer {
            status: response.status().as_u16(),
            headers: response
                .headers()
                .iter()
                .map(|(name, value)| {
                    (
                        name.to_string(),
                        String::from_utf8_lossy(value.as_bytes()).into_owned(),
                    )
                })
                .collect(),
            text: String::from_utf8_lossy(&body).into_owned(),
            body,
        })
    }
}
