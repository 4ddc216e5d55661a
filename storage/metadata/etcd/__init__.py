"""The metadata store on etcd: clusters that already run one keep their metadata there."""
