//! What is inside a sandbox.

use pando_testkit::World;
use serde_json::json;

#[test]
fn the_base_template_is_debian_13_with_the_promised_tools() {
    let world = World::start();
    let id = world.create();
    assert_eq!(world.sh(&id, ". /etc/os-release; echo $VERSION_ID"), "13");
    assert_eq!(
        world.sh(&id, "grep -h -m 1 ^Suites: /etc/apt/sources.list.d/*"),
        "Suites: trixie trixie-updates"
    );
    for tool in ["python3", "pip", "git", "curl", "ps", "sudo", "bash"] {
        world.sh(&id, &format!("command -v {tool}"));
    }
    assert_eq!(
        world.sh(
            &id,
            "python3 -m venv /tmp/v && /tmp/v/bin/python -c 'print(6*7)'"
        ),
        "42"
    );
    assert_eq!(
        world.sh(
            &id,
            "ls /lib/modules/$(uname -r) >/dev/null && echo modules"
        ),
        "modules"
    );
    assert_eq!(
        world.sh(&id, "sudo cut -d: -f2 /etc/shadow | grep -c '^\\$' || true"),
        "0",
        "an account has a password"
    );
}

#[test]
fn pip_install_works_for_the_user_and_leaves_debians_python_alone() {
    let world = World::start();
    let id = world.create();
    // A wheel made in the guest, since it has no network: what is tested is where pip puts it.
    world.sh(&id, r#"mkdir -p /tmp/w/hello && cd /tmp/w && printf 'def main(): print("hello from wheel")\n' > hello/__init__.py &&
        printf '[project]\nname = "hello"\nversion = "1"\n[project.scripts]\nhello-cmd = "hello:main"\n' > pyproject.toml &&
        python3 - <<'P'
import zipfile
w = zipfile.ZipFile("hello-1-py3-none-any.whl", "w")
w.write("hello/__init__.py")
w.writestr("hello-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1\n")
w.writestr("hello-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
w.writestr("hello-1.dist-info/entry_points.txt", "[console_scripts]\nhello-cmd = hello:main\n")
w.writestr("hello-1.dist-info/RECORD", "hello/__init__.py,,\nhello-1.dist-info/METADATA,,\nhello-1.dist-info/WHEEL,,\nhello-1.dist-info/entry_points.txt,,\nhello-1.dist-info/RECORD,,\n")
w.close()
P"#);
    world.sh(
        &id,
        "pip install --no-index /tmp/w/hello-1-py3-none-any.whl",
    );
    assert_eq!(
        world.sh(
            &id,
            "hello-cmd; python3 -c 'import hello; print(hello.__file__.startswith(\"/home/user\"))'"
        ),
        "hello from wheel\nTrue"
    );
    assert_eq!(
        world.sh(
            &id,
            "sudo /usr/bin/python3 -c 'import hello' 2>&1 | tail -n 1"
        ),
        "ModuleNotFoundError: No module named 'hello'"
    );
    world.sh(&id, "pip uninstall -y hello");
}

#[test]
fn a_network_that_is_closed_refuses_at_once_instead_of_hanging() {
    let world = World::start();
    let id = world.ok(["create", "--egress", "deny"]);
    let answer = world.exec(&id, &json!({ "shell": "ip -4 addr show eth0 | grep -o 'inet [0-9.]*/[0-9]*'; curl -sS -m 20 http://192.0.2.1/; echo $?; getent hosts example.org; echo $?", "timeout_s": 60 }));
    let said = answer["stdout"].as_str().unwrap();
    assert_eq!(said, "inet 10.0.2.15/24\n7\n2\n", "{answer}");
    assert!(
        answer["duration_ms"].as_f64().unwrap() < 15_000.0,
        "{answer}"
    );
}
