//! Sending traces: OTLP over HTTP, protobuf, <https://opentelemetry.io/docs/specs/otlp/>.

use crate::TARGET;
use async_trait::async_trait;
use http::{Request, Response, Uri};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanLimits};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

/// How long a collector may take for one batch. Batches wait for each other, so that one that
/// does not answer costs traces and nothing else.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of the daemon waits for the last batch.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes that are read of a collector's answer: it says at most what it refused.
const ANSWER_BYTES: u64 = 64 << 10;

/// Attributes of one span; ours have fewer than ten.
const ATTRIBUTES: u32 = 32;

/// Where a collector takes traces under OTLP's default paths.
const TRACES_PATH: &str = "/v1/traces";

/// Where traces are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(Uri);

/// A text is no endpoint.
#[derive(Debug, thiserror::Error)]
#[error("give the http or https URL of an OTLP collector, such as http://127.0.0.1:4318")]
pub struct EndpointError;

/// Traces cannot be sent at all.
#[derive(Debug, thiserror::Error)]
#[error("cannot trace: {0}")]
pub struct StartError(String);

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// A collector's URL; one without a path gets OTLP's.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let uri: Uri = text.parse().map_err(|_| EndpointError)?;
        let schemed = matches!(uri.scheme_str(), Some("http" | "https"));
        let named = uri.host().is_some_and(|host| !host.is_empty());
        // A user's name in it would be written to logs.
        let plain = uri.authority().is_some_and(|it| !it.as_str().contains('@'));
        if !(schemed && named && plain) {
            return Err(EndpointError);
        }
        if uri.path() != "/" {
            return Ok(Self(uri));
        }
        let whole = format!("{}{TRACES_PATH}", text.trim_end_matches('/'));
        whole.parse().map(Self).map_err(|_| EndpointError)
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

impl Endpoint {
    /// Whether it is on this host, where no proxy stands between.
    fn is_local(&self) -> bool {
        let host = self.0.host().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }
}

/// Sends spans from its start to its drop, in a thread of its own.
///
/// Spans wait in a queue of 2048; while it is full, further ones are dropped. What OpenTelemetry
/// names in the environment is heeded: `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`,
/// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_SCHEDULE_DELAY` and the like.
#[derive(Debug)]
pub struct Exporter {
    provider: SdkTracerProvider,
}

impl Exporter {
    /// Starts to send to `endpoint`, under the name `pando` and this version unless the
    /// environment has other ones. Nothing is connected before the first span ends.
    ///
    /// # Errors
    /// The environment holds what cannot be used.
    pub fn start(endpoint: &Endpoint, version: &'static str) -> Result<Self, StartError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new(endpoint))
            .with_endpoint(endpoint.to_string())
            .with_timeout(SEND_TIMEOUT)
            .build()
            .map_err(|error| StartError(error.to_string()))?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("pando");
        }
        let version = KeyValue::new("service.version", version);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_span_limits(SpanLimits {
                max_attributes_per_span: ATTRIBUTES,
                ..SpanLimits::default()
            })
            .with_resource(resource.with_attribute(version).build())
            .build();
        opentelemetry::global::set_tracer_provider(provider.clone());
        Ok(Self { provider })
    }

    /// What hears spans of [`TARGET`].
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("pando.daemon"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(TARGET, LevelFilter::TRACE))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(END_TIMEOUT) {
            tracing::warn!("the last traces were not sent: {error}");
        }
    }
}

/// Sends batches, from the exporter's thread.
#[derive(Debug)]
struct Client {
    agent: ureq::Agent,
    /// Whether the last one failed: that is said once.
    failing: AtomicBool,
}

impl Client {
    fn new(endpoint: &Endpoint) -> Self {
        let tls = ureq::tls::TlsConfig::builder()
            .root_certs(ureq::tls::RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let mut config = ureq::Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(SEND_TIMEOUT))
            .max_redirects(0)
            .http_status_as_error(false);
        if endpoint.is_local() {
            config = config.proxy(None);
        }
        Self {
            agent: config.build().new_agent(),
            failing: AtomicBool::new(false),
        }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, body.to_vec());
        let (parts, mut body) = self.agent.run(request)?.into_parts();
        let answer = body.with_config().limit(ANSWER_BYTES).read_to_vec()?;
        Ok(Response::from_parts(parts, Bytes::from(answer)))
    }

    fn tell(&self, problem: Option<String>) {
        let failed_before = self.failing.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !failed_before => tracing::warn!("traces are not taken: {problem}"),
            None if failed_before => tracing::info!("traces are taken again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.send(request);
        self.tell(match &sent {
            Err(error) => Some(error.to_string()),
            Ok(answer) if !answer.status().is_success() => {
                Some(format!("the collector answers {}", answer.status()))
            }
            Ok(_) => None,
        });
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_gets_the_usual_path_unless_it_has_one() {
        for (given, used) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("https://otel.example.com/in", "https://otel.example.com/in"),
        ] {
            assert_eq!(given.parse::<Endpoint>().unwrap().to_string(), used);
        }
        for wrong in [
            "",
            "collector:4318",
            "/v1/traces",
            "ftp://collector/",
            "http://",
            "http://user:secret@collector:4318",
            "http://a b",
        ] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_collector_on_this_host_is_asked_directly() {
        let is_local = |text: &str| text.parse::<Endpoint>().unwrap().is_local();
        assert!(is_local("http://localhost:4318"));
        assert!(is_local("http://127.0.0.1:4318"));
        assert!(is_local("http://[::1]:4318"));
        assert!(!is_local("http://collector:4318"));
        assert!(!is_local("https://10.0.0.1"));
    }
}
