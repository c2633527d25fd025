//! The APIs this broker speaks, and the versions of each.

use std::ops::RangeInclusive;

/// An API that is spoken. The discriminant is its key on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i16)]
pub enum Api {
    /// Appends record batches.
    Produce = 0,
    /// Reads record batches.
    Fetch = 1,
    /// Looks up offsets: first, last, by timestamp.
    ListOffsets = 2,
    /// Brokers, topics, partitions and their leaders.
    Metadata = 3,
    /// Who coordinates a group or a transaction.
    FindCoordinator = 10,
    /// Which APIs and versions there are.
    ApiVersions = 18,
    /// Creates topics.
    CreateTopics = 19,
    /// Deletes topics.
    DeleteTopics = 20,
    /// Deletes the records below an offset.
    DeleteRecords = 21,
    /// Gives out producer ids.
    InitProducerId = 22,
    /// Settings of topics and brokers.
    DescribeConfigs = 32,
    /// The cluster's id and brokers.
    DescribeCluster = 60,
    /// How a partition's log rolled last: sq's own, see [`rolls`](super::rolls).
    DescribeRolls = i16::from_be_bytes(*b"sq"),
}

impl Api {
    /// Every API, in the order of their keys.
    pub const ALL: [Self; 13] = [
        Self::Produce,
        Self::Fetch,
        Self::ListOffsets,
        Self::Metadata,
        Self::FindCoordinator,
        Self::ApiVersions,
        Self::CreateTopics,
        Self::DeleteTopics,
        Self::DeleteRecords,
        Self::InitProducerId,
        Self::DescribeConfigs,
        Self::DescribeCluster,
        Self::DescribeRolls,
    ];

    /// The API with this key, if it is spoken.
    pub fn from_key(key: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.key() == key)
    }

    /// Whether Kafka has it. What it does not have is not advertised.
    pub const fn is_kafkas(self) -> bool {
        !matches!(self, Self::DescribeRolls)
    }

    /// The key on the wire.
    pub const fn key(self) -> i16 {
        self as i16
    }

    /// The versions that a request is decoded and served in.
    pub const fn served(self) -> RangeInclusive<i16> {
        match self {
            Self::Produce => 3..=12,
            Self::Fetch => 4..=17,
            Self::ListOffsets => 1..=10,
            Self::Metadata => 0..=13,
            Self::FindCoordinator => 0..=6,
            Self::ApiVersions => 0..=4,
            Self::DescribeConfigs => 1..=4,
            Self::CreateTopics => 2..=7,
            Self::DeleteTopics => 1..=6,
            Self::InitProducerId => 0..=5,
            Self::DeleteRecords | Self::DescribeCluster => 0..=2,
            Self::DescribeRolls => 0..=0,
        }
    }

    /// The versions that `ApiVersions` names, of an API that Kafka has.
    ///
    /// They are the served ones but for Produce 0 to 2, which are answered `UNSUPPORTED_VERSION`:
    /// librdkafka sends everything uncompressed to a broker whose lowest Produce is above 0, and
    /// Apache Kafka advertises 0 for the same reason (KIP-896).
    pub const fn advertised(self) -> RangeInclusive<i16> {
        match self {
            Self::Produce => 0..=*self.served().end(),
            _ => self.served(),
        }
    }

    /// The first version with compact lengths and tagged fields, in header and body (KIP-482).
    pub const fn flexible_from(self) -> i16 {
        match self {
            Self::Produce | Self::Metadata => 9,
            Self::Fetch => 12,
            Self::ListOffsets => 6,
            Self::FindCoordinator | Self::ApiVersions => 3,
            Self::CreateTopics => 5,
            Self::DeleteTopics | Self::DescribeConfigs => 4,
            Self::DeleteRecords | Self::InitProducerId => 2,
            Self::DescribeCluster => 0,
            Self::DescribeRolls => i16::MAX,
        }
    }

    /// Whether a request's header ends in tagged fields (request header version 2).
    pub const fn flexible_request_header(self, version: i16) -> bool {
        version >= self.flexible_from()
    }

    /// Whether a response's header ends in tagged fields (response header version 1).
    ///
    /// Never for `ApiVersions`, whose response a client must be able to read before it knows which
    /// version the broker answered in (KIP-511).
    pub const fn flexible_response_header(self, version: i16) -> bool {
        !matches!(self, Self::ApiVersions) && version >= self.flexible_from()
    }
}

impl std::fmt::Display for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Api;
    use kafka_protocol::messages::ApiKey;

    #[test]
    fn keys_header_versions_and_ranges_are_those_of_the_protocol() {
        for api in Api::ALL.into_iter().filter(|api| api.is_kafkas()) {
            let key = ApiKey::try_from(api.key()).unwrap();
            assert_eq!(format!("{key:?}"), api.to_string());
            assert_eq!(Api::from_key(api.key()), Some(api));
            for version in api.served() {
                let request = if api.flexible_request_header(version) {
                    2
                } else {
                    1
                };
                assert_eq!(
                    key.request_header_version(version),
                    request,
                    "{api} {version}"
                );
                let response = i16::from(api.flexible_response_header(version));
                assert_eq!(
                    key.response_header_version(version),
                    response,
                    "{api} {version}"
                );
            }
            let known = key.valid_versions();
            assert!(
                known.min <= *api.served().start() && *api.served().end() <= known.max,
                "{api}"
            );
        }
        assert!(Api::ALL.is_sorted());
    }

    #[test]
    fn a_key_of_our_own_is_none_of_kafkas() {
        assert!(ApiKey::try_from(Api::DescribeRolls.key()).is_err());
        let highest = ApiKey::iter().map(|key| key as i16).max();
        assert!(highest.unwrap() < Api::DescribeRolls.key() / 2);
    }

    #[test]
    fn what_clients_in_use_need_is_served() {
        for (api, versions) in [
            (Api::Produce, [3, 11]),
            (Api::Fetch, [4, 17]),
            (Api::Metadata, [4, 12]),
            (Api::ListOffsets, [1, 10]),
            (Api::ApiVersions, [0, 4]),
            (Api::InitProducerId, [0, 5]),
        ] {
            assert!(versions.iter().all(|v| api.served().contains(v)), "{api}");
        }
        // librdkafka takes lz4 to be known only where FindCoordinator 0 is.
        assert!(Api::FindCoordinator.advertised().contains(&0));
    }

    #[test]
    fn produce_is_advertised_from_0_so_that_librdkafka_compresses() {
        // A broker whose lowest advertised Produce was 3 got everything uncompressed from released
        // versions of librdkafka, without a word: they look for version 0 before they use a codec.
        assert_eq!(*Api::Produce.advertised().start(), 0);
        assert_eq!(*Api::Produce.served().start(), 3);
        for api in Api::ALL.into_iter().filter(|api| *api != Api::Produce) {
            assert_eq!(api.advertised(), api.served());
        }
    }
}
