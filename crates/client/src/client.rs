//! The client: one method an operation. Those about snapshots are in `snapshots`.

use crate::away::{Away, request_id};
use crate::exec_stream::{self, ExecStream};
use crate::transport::{Call, RequestBody, Transport, content_length, full};
use crate::{ClientError, api};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http_body_util::{BodyDataStream, BodyExt, StreamBody};
use hyper::body::Frame;
use pando_api::route::Operation;
use pando_api::stream::StreamRequest;
use std::io;

/// Nothing to send.
pub(crate) const NO_BODY: Option<&()> = None;

/// A daemon's API.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) transport: Transport,
}

/// The contents of a file that is written.
pub struct FileSource {
    body: RequestBody,
    length: Option<u64>,
}

impl std::fmt::Debug for FileSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("FileSource")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl FileSource {
    /// Bytes at hand.
    pub fn bytes(bytes: Bytes) -> Self {
        Self {
            length: Some(bytes.len() as u64),
            body: full(bytes),
        }
    }

    /// A stream, and its length where that is known.
    pub fn stream(
        stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        length: Option<u64>,
    ) -> Self {
        Self {
            body: StreamBody::new(stream.map_ok(Frame::data)).boxed_unsync(),
            length,
        }
    }
}

pub(crate) fn call(operation: Operation, target: &str) -> Call<'_> {
    Call {
        operation,
        target,
        second: "",
        query: &[],
    }
}

/// The query that names a file.
fn file_query<'a>(path: &'a str, user: Option<&'a str>) -> Vec<(&'a str, &'a str)> {
    [("path", path)]
        .into_iter()
        .chain(user.map(|user| ("user", user)))
        .collect()
}

/// Every method fails with the [`ClientError`] that says why.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl Client {
    /// A client for the daemon at `url`, such as `http://127.0.0.1:7000`. Connects to nothing yet.
    pub fn new(url: &str, key: Option<&str>) -> Result<Self, ClientError> {
        Ok(Self {
            transport: Transport::new(url, key)?,
        })
    }

    /// The daemon's address as it was given.
    pub fn url(&self) -> &str {
        &self.transport.url
    }

    /// Whether a daemon answers; needs no key.
    pub async fn health(&self) -> Result<(), ClientError> {
        self.transport
            .send_json(&call(Operation::Health, ""), NO_BODY)
            .await
            .map(drop)
    }

    /// Makes a sandbox.
    pub async fn create(
        &self,
        request: &api::CreateSandboxRequest,
    ) -> Result<api::Sandbox, ClientError> {
        self.transport
            .json(&call(Operation::CreateSandbox, ""), Some(request))
            .await
    }

    /// Describes a sandbox.
    pub async fn get(&self, sandbox: &str) -> Result<api::Sandbox, ClientError> {
        self.transport
            .json(&call(Operation::GetSandbox, sandbox), NO_BODY)
            .await
    }

    /// Lists the caller's sandboxes.
    pub async fn list(&self) -> Result<Vec<api::Sandbox>, ClientError> {
        let list: api::SandboxList = self
            .transport
            .json(&call(Operation::ListSandboxes, ""), NO_BODY)
            .await?;
        Ok(list.sandboxes)
    }

    /// Lists the caller's sandboxes with what each costs its host.
    pub async fn list_with_usage(&self) -> Result<Vec<api::Sandbox>, ClientError> {
        let call = Call {
            operation: Operation::ListSandboxes,
            target: "",
            second: "",
            query: &[("usage", "true")],
        };
        let list: api::SandboxList = self.transport.json(&call, NO_BODY).await?;
        Ok(list.sandboxes)
    }

    /// Removes a sandbox.
    pub async fn remove(&self, sandbox: &str) -> Result<(), ClientError> {
        self.transport
            .send_json(&call(Operation::RemoveSandbox, sandbox), NO_BODY)
            .await
            .map(drop)
    }

    /// Powers a sandbox off.
    pub async fn stop(&self, sandbox: &str) -> Result<api::Sandbox, ClientError> {
        self.transport
            .json(&call(Operation::StopSandbox, sandbox), NO_BODY)
            .await
    }

    /// Starts a stopped sandbox.
    pub async fn start(&self, sandbox: &str) -> Result<api::Sandbox, ClientError> {
        self.transport
            .json(&call(Operation::StartSandbox, sandbox), NO_BODY)
            .await
    }

    /// Goes to the sandbox's agent and back.
    pub async fn ping(&self, sandbox: &str) -> Result<(), ClientError> {
        self.transport
            .send_json(&call(Operation::Ping, sandbox), NO_BODY)
            .await
            .map(drop)
    }

    /// The last lines of the sandbox's console.
    pub async fn console(&self, sandbox: &str) -> Result<String, ClientError> {
        let log: api::ConsoleLog = self
            .transport
            .json(&call(Operation::ConsoleLog, sandbox), NO_BODY)
            .await?;
        Ok(log.console)
    }

    /// Runs a program to its end. A daemon that goes away meanwhile is waited for; the program
    /// runs on and is not started again.
    pub async fn exec(
        &self,
        sandbox: &str,
        request: &api::ExecRequest,
    ) -> Result<api::ExecResponse, ClientError> {
        let mut request = request.clone();
        request.request_id.get_or_insert_with(request_id);
        let mut away = Away::default();
        loop {
            let call = call(Operation::Exec, sandbox);
            match self.transport.json(&call, Some(&request)).await {
                Err(error) => away.wait_after(error).await?,
                answered => return answered,
            }
        }
    }

    /// Starts a program, or attaches to one, and follows it. A daemon that goes away before it
    /// is known which process that is, is waited for; nothing is started twice.
    pub async fn exec_stream(
        &self,
        sandbox: &str,
        request: &StreamRequest,
    ) -> Result<ExecStream, ClientError> {
        let mut request = request.clone();
        if request.attach.is_none() {
            request.request_id.get_or_insert_with(request_id);
        }
        let mut away = Away::default();
        loop {
            match exec_stream::open(&self.transport, sandbox, &request).await {
                Err(error) => away.wait_after(error).await?,
                opened => return opened,
            }
        }
    }

    /// Lists the processes that can be attached to.
    pub async fn processes(&self, sandbox: &str) -> Result<Vec<api::Process>, ClientError> {
        let list: api::ProcessList = self
            .transport
            .json(&call(Operation::ListProcesses, sandbox), NO_BODY)
            .await?;
        Ok(list.processes)
    }

    /// Reads a file as a stream.
    pub async fn read_file(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
    ) -> Result<impl Stream<Item = Result<Bytes, ClientError>> + use<>, ClientError> {
        let query = file_query(path, user);
        let call = Call {
            operation: Operation::ReadFile,
            target: sandbox,
            second: "",
            query: &query,
        };
        let response = self.transport.send_json(&call, NO_BODY).await?;
        let stream = BodyDataStream::new(response.into_body());
        Ok(stream.map_err(|error| ClientError::Broken(error.to_string())))
    }

    /// Writes a file and its missing parents.
    pub async fn write_file(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
        source: FileSource,
    ) -> Result<(), ClientError> {
        let query = file_query(path, user);
        let call = Call {
            operation: Operation::WriteFile,
            target: sandbox,
            second: "",
            query: &query,
        };
        let headers: Vec<_> = source.length.map(content_length).into_iter().collect();
        self.transport
            .send(&call, source.body, &headers)
            .await
            .map(drop)
    }

    /// Removes a file, or a directory with all in it.
    pub async fn remove_file(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
    ) -> Result<(), ClientError> {
        let query = file_query(path, user);
        let call = Call {
            operation: Operation::RemoveFile,
            target: sandbox,
            second: "",
            query: &query,
        };
        self.transport.send_json(&call, NO_BODY).await.map(drop)
    }

    /// Describes a file.
    pub async fn stat(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
    ) -> Result<api::FileInfo, ClientError> {
        let query = file_query(path, user);
        self.transport
            .json(
                &Call {
                    operation: Operation::StatFile,
                    target: sandbox,
                    second: "",
                    query: &query,
                },
                NO_BODY,
            )
            .await
    }

    /// Lists a directory.
    pub async fn list_files(
        &self,
        sandbox: &str,
        path: &str,
        depth: u32,
    ) -> Result<Vec<api::FileInfo>, ClientError> {
        let depth = depth.to_string();
        let query = [("path", path), ("depth", &*depth)];
        let call = Call {
            operation: Operation::ListFiles,
            target: sandbox,
            second: "",
            query: &query,
        };
        let list: api::FileList = self.transport.json(&call, NO_BODY).await?;
        Ok(list.entries)
    }

    /// Makes a directory and its missing parents.
    pub async fn make_dir(
        &self,
        sandbox: &str,
        request: &api::MakeDirRequest,
    ) -> Result<api::FileInfo, ClientError> {
        self.transport
            .json(&call(Operation::MakeDir, sandbox), Some(request))
            .await
    }

    /// Moves or renames a file.
    pub async fn move_file(
        &self,
        sandbox: &str,
        request: &api::MoveRequest,
    ) -> Result<api::FileInfo, ClientError> {
        self.transport
            .json(&call(Operation::MoveFile, sandbox), Some(request))
            .await
    }

    /// Lists the templates.
    pub async fn templates(&self) -> Result<Vec<api::Template>, ClientError> {
        let list: api::TemplateList = self
            .transport
            .json(&call(Operation::ListTemplates, ""), NO_BODY)
            .await?;
        Ok(list.templates)
    }

    /// Bakes a template at a size; returns when it is done.
    pub async fn warm_template(
        &self,
        template: &str,
        request: &api::WarmRequest,
    ) -> Result<(), ClientError> {
        self.transport
            .send_json(&call(Operation::WarmTemplate, template), Some(request))
            .await
            .map(drop)
    }

    /// Removes a template; sandboxes made from it are kept.
    pub async fn remove_template(&self, template: &str) -> Result<(), ClientError> {
        self.transport
            .send_json(&call(Operation::RemoveTemplate, template), NO_BODY)
            .await
            .map(drop)
    }

    /// Makes a template; returns when it is done.
    pub async fn bake_template(
        &self,
        template: &str,
        request: &api::BakeRequest,
    ) -> Result<api::Template, ClientError> {
        self.transport
            .json(&call(Operation::BakeTemplate, template), Some(request))
            .await
    }

    /// What the daemon says of itself.
    pub async fn status(&self) -> Result<api::Status, ClientError> {
        self.transport
            .json(&call(Operation::Status, ""), NO_BODY)
            .await
    }
}
