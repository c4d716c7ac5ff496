//! What a tool answers: structured data with a short text, or a failure with a hint.

use pando_client::ClientError;
use rmcp::ErrorData;
use rmcp::handler::server::tool::IntoCallToolResult;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, MetaObject};
use serde::Serialize;
use serde_json::{Value, json};

/// Where a failure's parts are for programs. They are not structured content: that has the
/// shape that the tool promises, and clients refuse what has not.
const FAILURE_META: &str = "dev.pando/error";

/// A tool did what it was asked.
#[derive(Debug)]
pub(crate) struct Done<T> {
    /// For the model.
    pub(crate) text: String,
    /// For programs; has the shape of the tool's output schema.
    pub(crate) data: T,
}

impl<T> Done<T> {
    pub(crate) fn new(text: impl Into<String>, data: T) -> Self {
        Self {
            text: text.into(),
            data,
        }
    }
}

impl<T: Serialize> IntoCallToolResult for Done<T> {
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        let data = serde_json::to_value(&self.data)
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let mut result = CallToolResult::success(vec![ContentBlock::text(self.text)]);
        result.structured_content = Some(data);
        Ok(result.into())
    }
}

/// A tool could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// A stable word: the daemon's, or one of those below.
    pub(crate) code: String,
    /// One sentence.
    pub(crate) message: String,
    /// What can be done about it.
    pub(crate) hint: Option<String>,
}

/// What a tool returns.
pub(crate) type Answer<T> = Result<Done<T>, Failure>;

impl Failure {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The arguments make no sense.
    pub(crate) fn arguments(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message).hint("tools/list says what the tool takes")
    }

    /// The client took the request back.
    pub(crate) fn cancelled() -> Self {
        Self::new("cancelled", "the call was cancelled")
    }

    /// For programs.
    pub(crate) fn parts(&self) -> Value {
        json!({ "code": self.code, "message": self.message, "hint": self.hint })
    }

    /// For the model.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("error {}: {}", self.code, self.message);
        if let Some(hint) = &self.hint {
            text.push_str(&format!("\nhint: {hint}"));
        }
        text
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Api(refusal) => refusal.code.as_str(),
            ClientError::NotReachable { .. } => "not_reachable",
            ClientError::Broken(_) => "connection_lost",
            _ => "client_error",
        };
        let hint = match &error {
            ClientError::NotReachable { .. } => Some("`pando serve -d` starts the daemon"),
            error => error.hint(),
        };
        Self {
            code: code.to_owned(),
            message: error.to_string(),
            hint: hint.map(str::to_owned),
        }
    }
}

impl IntoCallToolResult for Failure {
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        let mut result = CallToolResult::error(vec![ContentBlock::text(self.text())]);
        let mut meta = MetaObject::default();
        meta.0.insert(FAILURE_META.to_owned(), self.parts());
        result.meta = Some(meta);
        Ok(result.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_a_tool_error_with_its_code_and_hint() {
        let failure = Failure::new("name_taken", "the name is taken").hint("choose another");
        let CallToolResponse::Complete(result) = failure.into_call_tool_result().unwrap() else {
            panic!("not complete");
        };
        let result = serde_json::to_value(result).unwrap();
        assert_eq!(result["isError"], true);
        assert_eq!(
            result["content"][0]["text"],
            "error name_taken: the name is taken\nhint: choose another"
        );
        assert_eq!(result["_meta"][FAILURE_META]["code"], "name_taken");
        // It would have to have the shape of a success.
        assert!(result.get("structuredContent").is_none());
    }

    #[test]
    fn a_daemon_that_is_away_says_how_to_start_it() {
        let failure = Failure::from(ClientError::NotReachable {
            url: "http://127.0.0.1:1".to_owned(),
            reason: "refused".to_owned(),
        });
        assert_eq!(failure.code, "not_reachable");
        assert!(failure.hint.unwrap().contains("pando serve"));
    }
}
