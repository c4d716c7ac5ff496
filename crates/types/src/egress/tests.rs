use super::*;

fn entry(text: &str) -> EgressEntry {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn fault(text: &str) -> EgressFault {
    match text.parse::<EgressEntry>() {
        Err(EgressError::Entry { fault, .. }) => fault,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn an_entry_is_shown_as_it_was_written() {
    for text in [
        "github.com",
        "*.example.org",
        "registry",
        "_dmarc.example.org",
        "xn--bcher-kva.example",
        "r3---sn-4g5e6nez.googlevideo.com",
        "0.0.0.0/0",
        "10.1.0.0/16",
        "1.2.3.4",
        "2001:db8::/32",
        "2001:db8::1",
        "::/0",
        "github.com:443",
        "*.example.org:443/tcp",
        "[2001:db8::1]:443",
        "[2001:db8::/32]:443",
        "1.2.3.4:53/udp",
        "10.1.0.0/16:53/udp",
        "10.1.0.0/16/icmp",
        "2001:db8::/32/icmp",
        "[2001:db8::1]:53/udp",
    ] {
        assert_eq!(entry(text).to_string(), text);
    }
}

#[test]
fn spellings_of_the_same_are_one() {
    for (text, canonical) in [
        ("GitHub.COM", "github.com"),
        ("github.com.", "github.com"),
        ("*.Example.org.:443/TCP", "*.example.org:443/tcp"),
        ("1.2.3.4/32", "1.2.3.4"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:DB8:0::1/128", "2001:db8::1"),
        ("1.2.3.4:00080", "1.2.3.4:80"),
    ] {
        assert_eq!(entry(text).to_string(), canonical);
    }
}

#[test]
fn what_is_wrong_with_an_entry_is_said() {
    for (text, expected) in [
        ("", EgressFault::Empty),
        (":443", EgressFault::Empty),
        ("*", EgressFault::Everything),
        ("*:443", EgressFault::Everything),
        ("a.*.org", EgressFault::Star),
        ("*x.org", EgressFault::Star),
        ("*.*.org", EgressFault::Star),
        ("https://github.com", EgressFault::Url),
        ("github.com/", EgressFault::Url),
        ("github.com/24", EgressFault::Url),
        ("github.com/pando", EgressFault::Protocol),
        ("a..b", EgressFault::Name),
        (".org", EgressFault::Name),
        ("-a.org", EgressFault::Name),
        ("a-.org", EgressFault::Name),
        ("a b.org", EgressFault::Name),
        ("bücher.example", EgressFault::NotAscii),
        ("10.1", EgressFault::Address),
        ("256.1.1.1", EgressFault::Address),
        ("010.1.1.1", EgressFault::Address),
        ("0x7f.0x1", EgressFault::Address),
        ("2130706433", EgressFault::Address),
        ("2001:db8:::1", EgressFault::Address),
        ("10.1/16", EgressFault::Address),
        ("10.0.0.0/33", EgressFault::Prefix(32)),
        ("10.0.0.0/+8", EgressFault::Protocol),
        ("10.0.0.0/8/8", EgressFault::Prefix(32)),
        ("2001:db8::/129", EgressFault::Prefix(128)),
        ("10.1.2.3/16", EgressFault::HostBits("10.1.0.0/16".into())),
        ("::ffff:1.2.3.4", EgressFault::Mapped),
        ("::ffff:0:0/96", EgressFault::Mapped),
        ("1.2.3.4:0", EgressFault::Port),
        ("1.2.3.4:", EgressFault::Port),
        ("1.2.3.4:+1", EgressFault::Port),
        ("1.2.3.4:65536", EgressFault::Port),
        ("[2001:db8::1", EgressFault::Brackets),
        ("[2001:db8::1]443", EgressFault::Brackets),
        ("[github.com]:443", EgressFault::Brackets),
        ("1.2.3.4/sctp", EgressFault::Protocol),
        ("1.2.3.4:5/icmp", EgressFault::IcmpPort),
    ] {
        assert_eq!(fault(text), expected, "{text}");
    }
    assert_eq!(fault(&"a".repeat(64)), EgressFault::Name);
    assert_eq!(fault(&"abc.".repeat(65)), EgressFault::LongName);
    assert_eq!(fault(&"a".repeat(1000)), EgressFault::TooLong);
}

#[test]
fn an_error_names_its_entry_and_is_short() {
    let error = "*".parse::<EgressEntry>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "`*` is not an egress entry: everything is what the policy's `default` is for"
    );
    let error = "a".repeat(1 << 20).parse::<EgressEntry>().unwrap_err();
    assert!(error.to_string().len() < 200);
}

#[test]
fn a_rule_is_one_string() {
    for text in ["allow github.com:443", "deny 10.0.0.0/8/icmp"] {
        assert_eq!(text.parse::<EgressRule>().unwrap().to_string(), text);
    }
    for text in ["github.com", "permit github.com", ""] {
        assert!(matches!(
            text.parse::<EgressRule>(),
            Err(EgressError::Rule(_))
        ));
    }
    let doubled = "allow  github.com".parse::<EgressRule>();
    assert!(matches!(doubled, Err(EgressError::Entry { .. })));
}

#[test]
fn a_wildcard_means_what_is_below_and_not_the_zone() {
    let wildcard = entry("*.example.org").host;
    for name in ["a.example.org", "a.b.example.org"] {
        assert!(wildcard.matches_name(name), "{name}");
    }
    for name in [
        "example.org",
        ".example.org",
        "badexample.org",
        "org",
        "a.example.org.evil",
    ] {
        assert!(!wildcard.matches_name(name), "{name}");
    }
    let name = entry("example.org").host;
    assert!(name.matches_name("example.org"));
    assert!(!name.matches_name("a.example.org"));
}

#[test]
fn a_network_means_its_addresses_of_its_kind() {
    let matches = |network: &str, address: &str| {
        entry(network)
            .host
            .matches_address(address.parse().unwrap())
    };
    assert!(matches("10.1.0.0/16", "10.1.255.255"));
    assert!(!matches("10.1.0.0/16", "10.2.0.0"));
    assert!(matches("0.0.0.0/0", "255.255.255.255"));
    assert!(!matches("0.0.0.0/0", "2001:db8::1"));
    assert!(matches("::/0", "2001:db8::1"));
    assert!(!matches("::/0", "1.2.3.4"));
    assert!(matches("2001:db8::/33", "2001:db8:7fff::1"));
    assert!(!matches("2001:db8::/33", "2001:db8:8000::"));
    assert!(matches("1.2.3.4", "1.2.3.4"));
    assert!(!matches("2001:db8::/64", "1.2.3.4"));
}

#[test]
fn the_native_form_denies_before_it_allows() {
    let policy = EgressPolicy::native(
        EgressAction::Deny,
        &[entry("*.example.org")],
        &[entry("evil.example.org"), entry("1.2.3.4")],
    )
    .unwrap();
    let rules: Vec<String> = policy.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        rules,
        [
            "deny evil.example.org",
            "deny 1.2.3.4",
            "allow *.example.org"
        ]
    );
    assert_eq!(policy.default, EgressAction::Deny);
}

#[test]
fn a_policy_has_a_bounded_number_of_rules() {
    let most = vec![entry("a.org"); EGRESS_RULES];
    assert!(EgressPolicy::native(EgressAction::Deny, &most, &[]).is_ok());
    let error = EgressPolicy::native(EgressAction::Deny, &most, &[entry("b.org")]);
    assert_eq!(error, Err(EgressError::TooMany(EGRESS_RULES + 1)));
}
