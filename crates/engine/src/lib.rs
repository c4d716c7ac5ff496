//! What a sandbox is allowed to do and when: the state machine, bakes, tenants.
//!
//! Knows no HTTP route and no VMM: doors translate to [`request`] values, and
//! every VM is behind a shim process that is spoken to over its socket.

mod error;
pub mod request;

pub use error::EngineError;

use bytes::Bytes;
use futures::stream::BoxStream;
use pando_types::{Size, TemplateRef};
use request::{
    Caller, Command, CreateSandbox, Event, ExecResult, ProcessEvent, ProcessId, ProcessInfo,
    ProcessInput, Sandbox, StartProcess, Status, Template,
};

/// The body of a raw request to a guest, and of its answer: streamed, never buffered whole.
pub type GuestBody = http_body_util::combinators::UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The engine: one per daemon, cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {}

#[allow(clippy::unused_async, unused_variables, missing_docs)]
impl Engine {
    pub async fn create(&self, caller: &Caller, request: CreateSandbox) -> Result<Sandbox, EngineError> {
        todo!()
    }
    pub async fn get(&self, caller: &Caller, sandbox: &str) -> Result<Sandbox, EngineError> {
        todo!()
    }
    pub async fn list(&self, caller: &Caller) -> Result<Vec<Sandbox>, EngineError> {
        todo!()
    }
    pub async fn remove(&self, caller: &Caller, sandbox: &str) -> Result<(), EngineError> {
        todo!()
    }
    pub async fn stop(&self, caller: &Caller, sandbox: &str) -> Result<Sandbox, EngineError> {
        todo!()
    }
    pub async fn start(&self, caller: &Caller, sandbox: &str) -> Result<Sandbox, EngineError> {
        todo!()
    }
    pub async fn ping(&self, caller: &Caller, sandbox: &str) -> Result<(), EngineError> {
        todo!()
    }
    pub async fn exec(&self, caller: &Caller, sandbox: &str, command: Command, stdin: Bytes) -> Result<ExecResult, EngineError> {
        todo!()
    }
    pub async fn start_process(&self, caller: &Caller, sandbox: &str, request: StartProcess) -> Result<ProcessId, EngineError> {
        todo!()
    }
    pub async fn attach(&self, caller: &Caller, sandbox: &str, process: &ProcessId, from_offset: u64) -> Result<BoxStream<'static, Result<ProcessEvent, EngineError>>, EngineError> {
        todo!()
    }
    pub async fn input(&self, caller: &Caller, sandbox: &str, process: &ProcessId, input: ProcessInput) -> Result<(), EngineError> {
        todo!()
    }
    pub async fn processes(&self, caller: &Caller, sandbox: &str) -> Result<Vec<ProcessInfo>, EngineError> {
        todo!()
    }
    pub async fn console(&self, caller: &Caller, sandbox: &str) -> Result<String, EngineError> {
        todo!()
    }
    pub async fn guest_http(&self, caller: &Caller, sandbox: &str, request: http::Request<GuestBody>) -> Result<http::Response<GuestBody>, EngineError> {
        todo!()
    }
    pub async fn events(&self, caller: &Caller, after: u64, limit: u32) -> Result<Vec<Event>, EngineError> {
        todo!()
    }
    pub async fn templates(&self, caller: &Caller) -> Result<Vec<Template>, EngineError> {
        todo!()
    }
    pub async fn warm_template(&self, caller: &Caller, template: &TemplateRef, size: Size) -> Result<(), EngineError> {
        todo!()
    }
    pub async fn status(&self, caller: &Caller) -> Result<Status, EngineError> {
        todo!()
    }
    /// Who holds this API key; compares hashes in constant time.
    pub async fn authenticate(&self, key: &str) -> Option<Caller> {
        todo!()
    }
}
