use super::*;

fn load(
    flags: &[(SettingKey, Option<String>)],
    variables: &[(&str, &str)],
    root: bool,
) -> anyhow::Result<Config> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Config::load(
        flags,
        &Surroundings {
            variable: &variable,
            root,
        },
    )
}

#[test]
fn the_table_is_in_the_order_of_its_keys() {
    assert!(SETTINGS.is_sorted_by_key(|setting| setting.key));
    assert_eq!(SETTINGS[0].key, SettingKey::ConfigFile);
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pando.toml");
    fs::write(
        &file,
        "listen = \"127.0.0.1:1\"\npublic_hosts = [\"a.example\", \"b.example\"]\n",
    )
    .unwrap();
    let file = file.display().to_string();
    let base = [("HOME", "/h"), ("PANDO_CONFIG", &*file)];
    let config = load(&[], &base, false).unwrap();
    assert_eq!(
        (
            config.get(SettingKey::Listen),
            config.source(SettingKey::Listen)
        ),
        ("127.0.0.1:1", Source::File)
    );
    assert_eq!(config.public_hosts(), ["a.example", "b.example"]);
    assert_eq!(config.url(), "http://127.0.0.1:1");
    let with_variable = [base[0], base[1], ("PANDO_LISTEN", "127.0.0.1:2")];
    let config = load(&[], &with_variable, false).unwrap();
    assert_eq!(
        (
            config.get(SettingKey::Listen),
            config.source(SettingKey::Listen)
        ),
        ("127.0.0.1:2", Source::Environment)
    );
    let flag = [(SettingKey::Listen, Some("127.0.0.1:3".to_owned()))];
    let config = load(&flag, &with_variable, false).unwrap();
    assert_eq!(
        (
            config.get(SettingKey::Listen),
            config.source(SettingKey::Listen)
        ),
        ("127.0.0.1:3", Source::Flag)
    );
    assert_eq!(config.source(SettingKey::Accel), Source::Default);
}

#[test]
fn two_users_and_root_never_meet() {
    let root = load(&[], &[], true).unwrap();
    assert_eq!(root.get(SettingKey::StateDir), "/var/lib/pando");
    assert_eq!(root.get(SettingKey::CacheDir), "/var/cache/pando");
    let user = load(&[], &[("HOME", "/home/a")], false).unwrap();
    assert_eq!(user.get(SettingKey::StateDir), "/home/a/.local/state/pando");
    assert_eq!(
        user.get(SettingKey::LogFile),
        "/home/a/.local/state/pando/daemon.log"
    );
    assert_eq!(
        user.admin_key_file(),
        Path::new("/home/a/.local/state/pando/admin.key")
    );
    let moved = load(
        &[],
        &[("HOME", "/home/a"), ("PANDO_STATE_DIR", "/x")],
        false,
    )
    .unwrap();
    assert_eq!(moved.get(SettingKey::LogFile), "/x/daemon.log");
    let error = load(&[], &[], false).unwrap_err().to_string();
    assert!(error.contains("HOME"), "{error}");
}

#[test]
fn a_misspelt_key_in_the_file_is_an_error() {
    let error = parse_file("listne = \"x\"").unwrap_err().to_string();
    assert!(
        error.starts_with("`listne` is not a setting; there are state_dir, "),
        "{error}"
    );
    assert!(parse_file("listen = 7").is_err());
    let error = parse_file("[arrakis]\ntemplte = \"x\"").unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("`arrakis_templte` is not"), "{error}");
    let nested = parse_file("[arrakis.more]\ntemplate = \"x\"");
    assert!(nested.is_err());
}

#[test]
fn a_key_below_a_table_counts_with_its_name() {
    let below = parse_file("[arrakis]\ntemplate = \"code\"\nauth = \"always\"").unwrap();
    let plain = parse_file("arrakis_template = \"code\"\narrakis_auth = \"always\"").unwrap();
    assert_eq!(below, plain);
    assert_eq!(below["arrakis_template"], "code");
    let numbers = parse_file("warm = 4\nreserve_mib = \"2048\"").unwrap();
    assert_eq!((&*numbers["warm"], &*numbers["reserve_mib"]), ("4", "2048"));
    assert!(
        load(
            &[],
            &[("HOME", "/h"), ("PANDO_CONFIG", "/nowhere/pando.toml")],
            false
        )
        .is_err()
    );
}

#[test]
fn a_wildcard_listener_is_reached_by_loopback() {
    for (listen, url) in [
        ("0.0.0.0:7", "http://127.0.0.1:7"),
        ("[::]:7", "http://[::1]:7"),
    ] {
        let config = load(&[], &[("HOME", "/h"), ("PANDO_LISTEN", listen)], false).unwrap();
        assert_eq!(config.url(), url);
    }
}
