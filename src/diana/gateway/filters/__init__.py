"""The filters that come with the gateway: one file each, and one entry-point line in `diana.filters`."""
