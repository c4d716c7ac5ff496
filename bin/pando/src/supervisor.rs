//! What the daemon tells a service manager that started it: systemd's notification protocol
//! (`sd_notify(3)`), datagrams to the socket that `NOTIFY_SOCKET` names. Without that
//! variable nothing is sent.

use sd_notify::NotifyState;

/// The variable that names the socket.
pub(crate) const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The daemon is on its way.
pub(crate) fn starting() {
    tell(&[NotifyState::Status(
        "starting: looks at the host and takes over what runs",
    )]);
}

/// The daemon answers requests at this address.
pub(crate) fn ready(address: std::net::SocketAddr) {
    tell(&[
        NotifyState::Ready,
        NotifyState::Status(&format!("serving at http://{address}")),
    ]);
}

/// The daemon ends, because it was told to.
pub(crate) fn stopping() {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("ending; sandboxes run on"),
    ]);
}

fn tell(states: &[NotifyState<'_>]) {
    // The daemon works without a manager that listens; whoever waits for it must know why
    // the manager gives up.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
