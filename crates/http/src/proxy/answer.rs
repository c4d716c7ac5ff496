//! What is answered in a guest's stead: JSON for programs, a page for people.

use crate::dispatch::GuestTarget;
use axum::response::{Html, IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use pando_types::SandboxState;
use serde_json::{Value, json};

/// Nothing of the page's may be loaded from anywhere, and nothing in it runs.
const CONTENT_SECURITY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Why a guest does not answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no such sandbox.
    Unknown,
    /// It does not run.
    Down(SandboxState),
    /// Nothing listens on the port.
    Closed,
    /// The port asks for a token.
    Forbidden,
    /// As many connections as there may be.
    Busy,
    /// What listens does not answer in HTTP, or broke off.
    Failed,
    /// The VM stands still.
    Stalled,
}

/// Answers for one request.
#[derive(Clone, Debug)]
pub(super) struct Answerer {
    named: String,
    port: u16,
    html: bool,
}

impl Answerer {
    pub(super) fn new(target: &GuestTarget, headers: &HeaderMap) -> Self {
        let accept = headers.get_all(header::ACCEPT).iter();
        let html = accept
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.contains("text/html"));
        Self {
            named: target.named.clone(),
            port: target.port,
            html,
        }
    }

    /// The whole answer.
    pub(super) fn answer(&self, trouble: Trouble) -> Response {
        let mut response = match self.html {
            true => Html(self.page(trouble)).into_response(),
            false => axum::Json(self.body(trouble)).into_response(),
        };
        *response.status_mut() = status(trouble);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.html {
            let policy = HeaderValue::from_static(CONTENT_SECURITY);
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        }
        response
    }

    /// E2B's clients tell the first two apart by their messages.
    fn body(&self, trouble: Trouble) -> Value {
        let mut body = json!({
            "sandboxId": self.named,
            "message": message(trouble),
            "code": status(trouble).as_u16(),
            "state": state(trouble),
        });
        if !matches!(trouble, Trouble::Unknown | Trouble::Down(_)) {
            body["port"] = self.port.into();
        }
        body
    }

    fn page(&self, trouble: Trouble) -> String {
        let (id, port) = (escape(&self.named), self.port);
        let advice = match trouble {
            Trouble::Unknown => "<p>It was removed, or the address is wrong. <code>pando ls</code> lists the sandboxes there are.</p>".to_owned(),
            Trouble::Down(SandboxState::Paused) => format!("<p>It is paused. <code>pando resume {id}</code> lets it go on; this address stays the same.</p>"),
            Trouble::Down(SandboxState::Stopped | SandboxState::Failed) => format!("<p><code>pando start {id}</code> starts it; <code>pando inspect {id}</code> says why it does not run.</p>"),
            Trouble::Down(_) => "<p>Try again in a moment.</p>".to_owned(),
            Trouble::Closed => format!("<p>Start a server in it, for instance<br><code>pando exec {id} -- python3 -m http.server {port}</code><br>and load this page again. <code>pando port {id}</code> lists what listens.</p>"),
            Trouble::Forbidden => format!("<p>Its owner can give you the token: <code>pando port {id} --token</code>. Put it behind this address once, as <code>?pando_token=TOKEN</code>.</p>"),
            Trouble::Busy => "<p>Close some and try again.</p>".to_owned(),
            Trouble::Failed => "<p>If it does not speak HTTP, ask for a TCP port: ".to_owned() + &format!("<code>pando port {id} {port}</code>.</p>"),
            Trouble::Stalled => "<p>It goes on by itself once the host's disk has room.</p>".to_owned(),
        };
        let (title, state) = (message(trouble), state(trouble));
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\n\
             <body><h1>{title}</h1>\n<table><tr><th>sandbox</th><td>{id}</td></tr>\
             <tr><th>port</th><td>{port}</td></tr><tr><th>state</th><td>{state}</td></tr></table>\n{advice}\n</body></html>\n"
        )
    }
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:42em;margin:12vh auto;padding:0 1em;color:#222}\
h1{font-size:1.3em}th{text-align:left;font-weight:normal;color:#666;padding-right:1.5em}\
code{background:#eee;padding:.1em .3em;border-radius:3px}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}code{background:#333}th{color:#999}}";

fn status(trouble: Trouble) -> StatusCode {
    match trouble {
        Trouble::Forbidden => StatusCode::FORBIDDEN,
        Trouble::Busy => StatusCode::SERVICE_UNAVAILABLE,
        Trouble::Stalled => StatusCode::INSUFFICIENT_STORAGE,
        Trouble::Unknown | Trouble::Down(_) | Trouble::Closed | Trouble::Failed => {
            StatusCode::BAD_GATEWAY
        }
    }
}

fn message(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Unknown | Trouble::Down(_) => "The sandbox was not found",
        Trouble::Closed => "The sandbox is running but port is not open",
        Trouble::Forbidden => "The port asks for the sandbox's traffic token or an API key",
        Trouble::Busy => "The sandbox has as many connections as it may have",
        Trouble::Failed => "What listens on the port did not answer in HTTP",
        Trouble::Stalled => "The sandbox stands still: the host's disk is full",
    }
}

fn state(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Unknown => "unknown",
        Trouble::Down(state) => state.as_str(),
        // Whoever may not pass is not told more.
        Trouble::Forbidden => "unknown",
        Trouble::Closed | Trouble::Busy | Trouble::Failed | Trouble::Stalled => "running",
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answerer(named: &str, accept: &str) -> Answerer {
        let target = GuestTarget {
            sandbox: None,
            named: named.to_owned(),
            port: 8080,
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        Answerer::new(&target, &headers)
    }

    #[test]
    fn programs_get_the_bodies_that_e2bs_clients_know() {
        let answerer = answerer("s1", "*/*");
        assert_eq!(
            answerer.body(Trouble::Down(SandboxState::Paused)),
            json!({ "sandboxId": "s1", "message": "The sandbox was not found", "code": 502, "state": "paused" })
        );
        assert_eq!(
            answerer.body(Trouble::Closed),
            json!({ "sandboxId": "s1", "message": "The sandbox is running but port is not open", "port": 8080, "code": 502, "state": "running" })
        );
        assert_eq!(answerer.answer(Trouble::Forbidden).status(), 403);
    }

    #[test]
    fn browsers_get_a_page_in_which_nothing_of_the_request_is_markup() {
        let answerer = answerer("<script>\"'&", "text/html,*/*;q=0.8");
        let page = answerer.page(Trouble::Closed);
        assert!(page.contains("&lt;script&gt;&quot;&#39;&amp;") && !page.contains("<script"));
        assert!(page.contains("python3 -m http.server 8080"), "{page}");
        let response = answerer.answer(Trouble::Down(SandboxState::Paused));
        assert_eq!(response.status(), 502);
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "text/html; charset=utf-8"
        );
        assert_eq!(
            response.headers()[header::CONTENT_SECURITY_POLICY],
            CONTENT_SECURITY
        );
    }
}
