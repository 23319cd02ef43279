"""Where rules documents are: one file for each kind of URL. A backend does not read what a document means. Entry points: `diana.sources`.

file         a file, or a folder of files
http         a web server
redis        a key in Redis or Valkey
etcd         a key in etcd
zookeeper    a node in ZooKeeper
http_client  one request to etcd, with one deadline
server_list  URLs of several servers; the next server after a failure
atomic_file  writes a file whole or not at all
"""
