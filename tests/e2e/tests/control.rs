//! The control service is the host's alone.

use pando_testkit::World;

#[test]
fn neither_a_client_nor_a_guests_user_reaches_the_control_service() {
    let world = World::start();
    let id = world.create();
    let port = world.url().rsplit(':').next().unwrap().to_owned();
    let host = format!("49983-{id}.localhost:{port}");
    let api = world.api();
    // The way in is open: the user service answers there.
    let health = api.send("GET", "/health", &[("host", &host)], b"");
    assert_eq!(health.status, 204, "{}", health.text);
    let headers = [
        ("host", host.as_str()),
        ("content-type", "application/json"),
        ("connect-protocol-version", "1"),
    ];
    for method in ["Ping", "Info", "Shutdown"] {
        let path = format!("/pando.guest.v1.Guest/{method}");
        let answer = api.send("POST", &path, &headers, b"{}");
        assert_eq!(answer.status, 404, "{method}: {}", answer.text);
    }
    // The same call on the service that is there, so that the refusal means something.
    let list = api.send("POST", "/process.Process/List", &headers, b"{}");
    assert_eq!(list.status, 200, "{}", list.text);

    let ports = world.sh(
        &id,
        "for port in /dev/vport*; do head -c 1 $port >/dev/null 2>&1 && echo $port; done; true",
    );
    assert_eq!(ports, "", "the guest's user can read a port of the channel");
    assert_eq!(world.sh(&id, "ls /dev/vport* | wc -l"), "2");
    assert_eq!(world.sh(&id, "echo alive"), "alive");
}
