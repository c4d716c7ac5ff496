//! What can be typed about ports.

use clap::Args;

/// `pando port`.
#[derive(Debug, Args)]
pub(crate) struct Port {
    /// Take back what was said of the port: no port of this machine leads to it any more
    #[arg(long, requires = "port", conflicts_with = "access")]
    pub(crate) rm: bool,
    /// Say who may use it by HTTP, and print its address there: `public` is whoever knows the sandbox's id, `token`
    /// who sends an API key or the sandbox's traffic token
    #[arg(long, value_name = "WHO", requires = "port", value_parser = ["public", "token"], hide_possible_values = true)]
    pub(crate) access: Option<String>,
    /// Print the sandbox's traffic token, which lets its holder use every port by HTTP
    #[arg(long, conflicts_with = "port")]
    pub(crate) token: bool,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["rm", "token"])]
    pub(crate) json: bool,
    /// Print the numbers of open ports only
    #[arg(short, long, conflicts_with_all = ["json", "port", "token"])]
    pub(crate) quiet: bool,
    /// The sandbox: id, a prefix of it, or name
    pub(crate) id: String,
    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
}
