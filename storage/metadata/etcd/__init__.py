"""The metadata store on etcd, for clusters that already run one."""
