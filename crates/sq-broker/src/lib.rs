//! The broker: the Kafka protocol over `sq-storage`.
