"""Object stores: S3, Google Cloud Storage, Azure and web servers, through `obstore`.

`urls` reads URLs and refuses credentials in them, `limits` bounds how long requests may take, `failures` turns errors
of `obstore` into errors without secrets, `requests` runs requests with patience, `store` has the operations, `ahead`
fetches objects before they are needed. `obstore` is imported by the first request, and
this package imports nothing, so that `urls` alone is cheap.
"""
